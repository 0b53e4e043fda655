"""Client properties with Kafka's names."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.net.client_properties import BadClientPropertiesError, security_from
from ottla.net.private_authority import PrivateAuthority
from ottla.net.security import SaslLogin
from ottla.protocol.model.listeners import SecurityProtocol

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="of \\"alice\\"";'


def test_nothing_means_plaintext() -> None:
    found = security_from({"client.id": "x"})
    assert found.protocol is SecurityProtocol.PLAINTEXT
    assert found.tls_context() is None
    assert found.login is None


def test_a_login_by_name_or_by_jaas(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(PrivateAuthority.new().certificate)
    base = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "sasl.mechanism": "PLAIN",
    }
    found = security_from({**base, "sasl.jaas.config": JAAS})
    assert found.login == SaslLogin("PLAIN", "alice", 'of "alice"')
    assert found.tls_context() is not None
    assert "alice" not in repr(found.login).replace("username='alice'", "")
    named = security_from({**base, "sasl.username": "bob", "sasl.password": "of bob"})
    assert named.login == SaslLogin("PLAIN", "bob", "of bob")


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS is not one of"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "sasl.mechanism= is not one of"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI is not one of"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "needs sasl.username and sasl.password"),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "secret"},
            "sasl.jaas.config cannot be read",
        ),
        ({"ssl.engine.factory.class": "x"}, "ssl.engine.factory.class is not supported"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/nowhere"}, "/nowhere cannot be read"),
        ({"ssl.truststore.type": "JKS"}, "must be one of PEM, PKCS12"),
    ],
)
def test_mistakes(properties: dict[str, str], message: str) -> None:
    with pytest.raises(BadClientPropertiesError, match=message) as caught:
        security_from(properties)
    assert "secret" not in str(caught.value)

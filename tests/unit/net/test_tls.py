"""TLS contexts from Kafka's settings, the certificates of a private authority, and the names in them."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest
from cryptography import x509 as cryptography_x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12

from ottla.net.private_authority import PrivateAuthority
from ottla.net.tls import BadTlsError, ReloadingContext, client_context, own_certificate, server_context
from ottla.protocol.model.errors import Refused
from ottla.protocol.model.tls_settings import TlsSettings, parse_tls
from ottla.protocol.model.x509 import read_certificate

AUTHORITY = PrivateAuthority.new()
BROKER = AUTHORITY.issue("broker-1", ["localhost", "127.0.0.1"])
PASSWORD = "a secret"


def settings(**values: str) -> TlsSettings:
    found = parse_tls({name.replace("_", "."): value for name, value in values.items()}.get)
    assert isinstance(found, TlsSettings), found
    return found


def pem_settings(tmp_path: Path, **values: str) -> TlsSettings:
    (tmp_path / "broker.pem").write_text(BROKER.pem)
    (tmp_path / "ca.pem").write_text(AUTHORITY.certificate)
    return settings(
        ssl_keystore_location=str(tmp_path / "broker.pem"), ssl_truststore_location=str(tmp_path / "ca.pem"), **values
    )


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> ssl.SSLObject:
    """Runs a handshake in memory and returns the server's side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    at_server = server.wrap_bio(to_server, to_client, server_side=True)
    at_client = client.wrap_bio(to_client, to_server, server_hostname=host)
    pending = [at_client, at_server]
    while pending:
        for side in list(pending):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            pending.remove(side)
    return at_server


def test_pem_files_in_both_directions(tmp_path: Path) -> None:
    both = pem_settings(tmp_path, ssl_client_auth="required")
    seen = handshake(server_context(both), client_context(both))
    certificate = seen.getpeercert(binary_form=True)
    assert certificate is not None
    assert read_certificate(certificate).subject == "CN=broker-1"
    assert seen.version() == "TLSv1.3"


def test_texts_instead_of_files() -> None:
    texts = settings(
        ssl_keystore_certificate_chain=BROKER.certificate,
        ssl_keystore_key=BROKER.key,
        ssl_truststore_certificates=AUTHORITY.certificate,
        ssl_enabled_protocols="TLSv1.2",
    )
    assert handshake(server_context(texts), client_context(texts)).version() == "TLSv1.2"
    assert PASSWORD not in repr(texts)
    assert "PRIVATE" not in repr(texts)


def test_pkcs12_stores(tmp_path: Path) -> None:
    certificate = cryptography_x509.load_pem_x509_certificate(BROKER.certificate.encode())
    authority = cryptography_x509.load_pem_x509_certificate(AUTHORITY.certificate.encode())
    key = load_pem_private_key(BROKER.key.encode(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    store = pkcs12.serialize_key_and_certificates(
        b"broker", key, certificate, [authority], BestAvailableEncryption(PASSWORD.encode())
    )
    (tmp_path / "broker.p12").write_bytes(store)
    values = {
        "ssl_keystore_type": "PKCS12",
        "ssl_keystore_location": str(tmp_path / "broker.p12"),
        "ssl_keystore_password": PASSWORD,
        "ssl_truststore_certificates": AUTHORITY.certificate,
    }
    handshake(server_context(settings(**values)), client_context(settings(**values)))
    with pytest.raises(BadTlsError, match="its password is wrong") as caught:
        server_context(settings(**{**values, "ssl_keystore_password": "another secret"}))
    assert "another secret" not in str(caught.value)


def test_a_client_rejects_another_authority_and_another_host(tmp_path: Path) -> None:
    ours = pem_settings(tmp_path)
    stranger = settings(ssl_truststore_certificates=PrivateAuthority.new().certificate)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(ours), client_context(stranger))
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(server_context(ours), client_context(ours), "elsewhere.example")
    unchecked = pem_settings(tmp_path, ssl_endpoint_identification_algorithm="")
    handshake(server_context(ours), client_context(unchecked), "elsewhere.example")


def test_a_server_demands_a_certificate_of_its_authority(tmp_path: Path) -> None:
    server = server_context(pem_settings(tmp_path, ssl_client_auth="required", ssl_enabled_protocols="TLSv1.2"))
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(server, client_context(settings(ssl_truststore_certificates=AUTHORITY.certificate)))
    forged = PrivateAuthority.new().issue("broker-1")
    stranger = settings(
        ssl_truststore_certificates=AUTHORITY.certificate,
        ssl_keystore_certificate_chain=forged.certificate,
        ssl_keystore_key=forged.key,
    )
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client_context(stranger))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "set ssl.keystore.location"),
        ({"ssl_keystore_location": "/nowhere.pem"}, "/nowhere.pem cannot be read: no such file"),
        ({"ssl_client_auth": "required", "ssl_keystore_location": "KEYS"}, "set ssl.truststore.location"),
        ({"ssl_keystore_location": "JKS"}, "keytool -importkeystore"),
        ({"ssl_keystore_location": "EMPTY"}, "cannot be used"),
        ({"ssl_keystore_location": "KEYS", "ssl_truststore_location": "EMPTY"}, "has no certificate"),
        ({"ssl_keystore_location": "KEYS", "ssl_cipher_suites": "ROT13"}, "OpenSSL knows none of these"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, values: dict[str, str], message: str) -> None:
    files = {"KEYS": BROKER.pem.encode(), "JKS": b"\xfe\xed\xfe\xed\0\0\0\2", "EMPTY": b""}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    placed = {name: str(tmp_path / value) if value in files else value for name, value in values.items()}
    with pytest.raises(BadTlsError, match=message):
        server_context(settings(**placed))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ssl.keystore.key": "x"}, "need each other"),
        ({"ssl.keystore.key": "x", "ssl.keystore.certificate.chain": "y", "ssl.keystore.location": "z"}, "not both"),
        ({"ssl.principal.mapping.rules": "RULE:CN="}, "is not RULE:PATTERN"),
    ],
)
def test_settings_that_contradict_each_other(values: dict[str, str], message: str) -> None:
    refused = parse_tls(values.get)
    assert isinstance(refused, Refused)
    assert message in (refused.message or "")


def test_replaced_certificates_are_used_for_new_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    followed = pem_settings(tmp_path)
    reloading = ReloadingContext(followed, server_context, "listener SSL")
    first = reloading.context()
    assert not reloading.reload_if_changed()
    renewed = tmp_path / "renewed.pem"
    renewed.write_text(AUTHORITY.issue("broker-2", ["localhost"]).pem)
    os.replace(renewed, tmp_path / "broker.pem")
    assert reloading.reload_if_changed()
    assert reloading.context() is not first
    assert reloading.certificate is not None
    assert reloading.certificate.subject == "CN=broker-2"
    (tmp_path / "broker.pem").write_text("half a file")
    assert not reloading.reload_if_changed()
    assert reloading.certificate.subject == "CN=broker-2"
    assert "the changed certificates are not used" in caplog.text


def test_the_expiry_is_that_of_the_certificate(tmp_path: Path) -> None:
    found = own_certificate(pem_settings(tmp_path))
    expected = cryptography_x509.load_pem_x509_certificate(BROKER.certificate.encode())
    assert found is not None
    assert found.not_after == expected.not_valid_after_utc
    assert found.not_before == expected.not_valid_before_utc

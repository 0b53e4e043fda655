"""Listeners with TLS: encryption, principals from certificates, hostile handshakes, and addresses by listener."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from ottla.broker.app_listeners import BadSettingsError
from ottla.client import Admin, Consumer, NoBrokerError, Producer
from ottla.net.private_authority import PrivateAuthority
from ottla.net.security import ConnectionSecurity
from ottla.protocol.model.listeners import SecurityProtocol
from tests.unit.broker.security.secured import ALICE, AUTHORITY, client_security, running, tls_properties, tls_settings

SSL_ONLY = "SSL://127.0.0.1:0"
WAIT_S = 30.0


def principals(broker: object) -> set[str]:
    connections = broker.server._serving.connections  # type: ignore[attr-defined] # tests look inside
    return {str(each._handler._state.principal) for each in connections}


async def write_and_read(bootstrap: str, security: ConnectionSecurity) -> None:
    values = [b"%d" % number * 50_000 for number in range(5)]
    async with asyncio.timeout(WAIT_S):
        async with Producer(bootstrap, security=security) as producer:
            for value in values:
                await producer.send("topic", value)
        async with Consumer(bootstrap, security=security, auto_offset_reset="earliest") as consumer:
            consumer.assign([("topic", 0)])
            found: list[bytes | None] = []
            while len(found) < len(values):
                found += [record.value for record in await consumer.fetch_records(10)]
    assert found == values


async def test_records_pass_through_an_encrypted_listener(tmp_path: Path) -> None:
    async with running(tmp_path, SSL_ONLY, tls_properties()) as broker:
        await write_and_read(broker.bootstrap, client_security())
        ((listener, certificate),) = broker.server.certificates()
        assert (listener, certificate.subject) == ("SSL", "CN=broker")


async def test_a_certificate_names_the_principal(tmp_path: Path) -> None:
    properties = {
        **tls_properties(),
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?),OU=people$/$1/U,DEFAULT",
    }
    async with running(tmp_path, SSL_ONLY, properties) as broker:
        async with Admin(broker.bootstrap, security=client_security(keys=ALICE)):
            assert principals(broker) == {"User:ALICE"}
        with pytest.raises(NoBrokerError):
            async with Admin(broker.bootstrap, security=client_security(), connect_timeout_ms=3000):
                pass
        stranger = PrivateAuthority.new().issue("alice", unit="people")
        with pytest.raises(NoBrokerError):
            async with Admin(broker.bootstrap, security=client_security(keys=stranger), connect_timeout_ms=3000):
                pass
        assert broker.server.unauthenticated_count == 0


async def test_a_client_without_a_certificate_is_anonymous(tmp_path: Path) -> None:
    properties = {**tls_properties(), "ssl.client.auth": "requested"}
    async with (
        running(tmp_path, SSL_ONLY, properties) as broker,
        Admin(broker.bootstrap, security=client_security()),
    ):
        assert principals(broker) == {"User:ANONYMOUS"}


async def test_a_certificate_that_no_rule_matches_is_turned_away(tmp_path: Path) -> None:
    rules = {"ssl.client.auth": "required", "ssl.principal.mapping.rules": "RULE:^CN=broker$/broker/"}
    async with running(tmp_path, SSL_ONLY, {**tls_properties(), **rules}) as broker:
        with pytest.raises(NoBrokerError):
            async with Admin(broker.bootstrap, security=client_security(keys=ALICE), connect_timeout_ms=3000):
                pass


async def test_clients_are_sent_to_the_listener_that_they_used(tmp_path: Path) -> None:
    listeners = "SSL://127.0.0.1:0,OPEN://127.0.0.1:0,INTERNAL://127.0.0.1:0"
    properties = {
        **tls_properties(),
        "listener.security.protocol.map": "SSL:SSL,OPEN:PLAINTEXT,INTERNAL:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
    }
    async with running(tmp_path, listeners, properties) as broker:
        for name, address in broker.broker.context.endpoints.by_listener.items():
            secure = client_security() if name == "SSL" else client_security(SecurityProtocol.PLAINTEXT)
            async with Admin(f"{address.host}:{address.port}", security=secure) as admin:
                (node,) = (await admin.describe_cluster()).brokers
                assert node.port == address.port, name
                await admin.create_topic(f"topic-{name}")
                assert (await admin.describe_topic(f"topic-{name}")).name == f"topic-{name}"


async def test_a_listener_has_certificates_of_its_own(tmp_path: Path) -> None:
    other = PrivateAuthority.new()
    own = tls_properties(other.issue("other", ["127.0.0.1"]), other)
    overrides = {f"listener.name.external.{name}": value for name, value in own.items()}
    properties = {**tls_properties(), **overrides, "listener.security.protocol.map": "EXTERNAL:SSL,SSL:SSL"}
    properties["inter.broker.listener.name"] = "SSL"
    async with running(tmp_path, "EXTERNAL://127.0.0.1:0,SSL://127.0.0.1:0", properties) as broker:
        endpoints = broker.broker.context.endpoints.by_listener
        async with Admin(f"127.0.0.1:{endpoints['SSL'].port}", security=client_security()):
            pass
        with pytest.raises(NoBrokerError, match="certificate is not valid"):
            async with Admin(f"127.0.0.1:{endpoints['EXTERNAL'].port}", security=client_security()):
                pass


async def test_half_open_handshakes_do_not_keep_others_out(tmp_path: Path) -> None:
    properties = {**tls_properties(), "ottla.unauthenticated.connections.max": "5"}
    async with running(tmp_path, SSL_ONLY, properties) as broker:
        port = broker.broker.context.endpoints.clients.port
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        async with Admin(broker.bootstrap, security=client_security()) as admin:
            await admin.list_topics()
        assert broker.server.unauthenticated_count <= 5
        reader, _ = silent[0]
        async with asyncio.timeout(WAIT_S):
            assert await reader.read() == b""  # the oldest was closed
        for _, writer in silent:
            writer.close()


async def test_a_handshake_that_does_not_end_is_closed(tmp_path: Path) -> None:
    properties = {**tls_properties(), "ottla.authentication.timeout.ms": "100"}
    async with running(tmp_path, SSL_ONLY, properties) as broker:
        port = broker.broker.context.endpoints.clients.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(WAIT_S):
            assert await reader.read() == b""
        writer.close()
        assert broker.server.unauthenticated_count == 0


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(70_000), b"\0\0\0\x10garbage" * 9]
)
async def test_garbage_instead_of_a_handshake(tmp_path: Path, sent: bytes) -> None:
    async with running(tmp_path, SSL_ONLY, tls_properties()) as broker:
        port = broker.broker.context.endpoints.clients.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        async with asyncio.timeout(WAIT_S):
            with contextlib.suppress(ConnectionError):
                await reader.read()
        writer.close()
        async with Admin(broker.bootstrap, security=client_security()) as admin:
            await admin.list_topics()


async def test_renewed_certificates_serve_new_connections_beside_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.net.tls.CHECK_INTERVAL_S", 0.0)
    store = tmp_path / "broker.pem"
    store.write_text(AUTHORITY.issue("first", ["127.0.0.1"]).pem)
    properties = {"ssl.keystore.location": str(store), "ssl.truststore.certificates": AUTHORITY.certificate}
    async with (
        running(tmp_path / "data", SSL_ONLY, properties) as broker,
        Admin(broker.bootstrap, security=client_security()) as old,
    ):
        successor = PrivateAuthority.new()
        renewed = tmp_path / "renewed.pem"
        renewed.write_text(successor.issue("second", ["127.0.0.1"]).pem)
        renewed.replace(store)
        trusts_both = tls_settings(ssl_truststore_certificates=AUTHORITY.certificate + successor.certificate)
        async with Admin(broker.bootstrap, security=ConnectionSecurity(SecurityProtocol.SSL, trusts_both)) as new:
            assert await new.list_topics() == await old.list_topics()
        with pytest.raises(NoBrokerError, match="certificate is not valid"):
            async with Admin(broker.bootstrap, security=client_security()):
                pass


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, "listener SSL: a listener with TLS needs a certificate"),
        ({**tls_properties(), "listener.name.other.ssl.client.auth": "none"}, "does not have"),
        ({**tls_properties(), "ssl.keystore.key": "no key"}, "listener SSL: .* cannot be used"),
    ],
)
async def test_a_broker_does_not_start_without_what_it_promises(
    tmp_path: Path, properties: dict[str, str], message: str
) -> None:
    with pytest.raises(BadSettingsError, match=message):
        async with running(tmp_path, SSL_ONLY, properties):
            pass

"""Listeners with SASL: right and wrong logins, sessions, and what a client may do before it is authenticated."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from ottla.broker.app_listeners import BadSettingsError
from ottla.client import Admin, ClientError
from ottla.net.apis import METADATA, call, open_connection
from ottla.net.connection import Address, Connection
from ottla.net.errors import ConnectionLostError
from ottla.net.sasl import authenticate
from ottla.net.security import ConnectionSecurity, SaslLogin
from ottla.protocol.model.listeners import SecurityProtocol
from ottla.protocol.wire.headers import request_header
from tests.unit.broker.security.secured import client_security, running, tls_properties
from tests.unit.broker.security.test_tls_listeners import principals, write_and_read

SASL_PLAINTEXT = "SASL_PLAINTEXT://127.0.0.1:0"
PASSWORD = "the password of alice"
MODULE = "org.apache.kafka.common.security"
WAIT_S = 30.0
PROPERTIES = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        f'{MODULE}.plain.PlainLoginModule required user_alice="{PASSWORD}" user_bob="of bob";'
    ),
    "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": (
        f'{MODULE}.scram.ScramLoginModule required username="broker" password="of the broker";'
    ),
}


def login(mechanism: str, user: str = "alice", password: str = PASSWORD) -> ConnectionSecurity:
    return ConnectionSecurity(SecurityProtocol.SASL_PLAINTEXT, login=SaslLogin(mechanism, user, password))


async def set_password(bootstrap: str, user: str, password: str, iterations: int = 4096) -> None:
    async with Admin(bootstrap, security=login("SCRAM-SHA-512", "broker", "of the broker")) as admin:
        await admin.set_scram_password(user, password, iterations=iterations)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_right_and_wrong_logins(tmp_path: Path, mechanism: str) -> None:
    async with running(tmp_path, SASL_PLAINTEXT, PROPERTIES) as broker:
        await set_password(broker.bootstrap, "alice", PASSWORD)
        await write_and_read(broker.bootstrap, login(mechanism))
        async with Admin(broker.bootstrap, security=login(mechanism)):
            assert "User:alice" in principals(broker)
        messages = set()
        for wrong in (login(mechanism, password="wrong"), login(mechanism, user="nobody")):
            with pytest.raises(ClientError) as caught:
                async with Admin(broker.bootstrap, security=wrong):
                    pass
            messages.add(str(caught.value))
        assert len(messages) == 1  # a client does not learn whether the user exists
        assert PASSWORD not in messages.pop()


async def test_a_mechanism_that_is_not_offered(tmp_path: Path) -> None:
    properties = {**PROPERTIES, "sasl.enabled.mechanisms": "SCRAM-SHA-512"}
    async with running(tmp_path, SASL_PLAINTEXT, properties) as broker:
        with pytest.raises(ClientError, match="does not offer the mechanism PLAIN, but SCRAM-SHA-512"):
            async with Admin(broker.bootstrap, security=login("PLAIN")):
                pass


async def test_sasl_over_tls(tmp_path: Path) -> None:
    properties = {name.replace("sasl_plaintext", "sasl_ssl"): value for name, value in PROPERTIES.items()}
    async with running(tmp_path, "SASL_SSL://127.0.0.1:0", {**properties, **tls_properties()}) as broker:
        alice = SaslLogin("PLAIN", "alice", PASSWORD)
        await write_and_read(broker.bootstrap, client_security(SecurityProtocol.SASL_SSL, login=alice))


async def test_credentials_outlive_the_broker_and_can_be_deleted(tmp_path: Path) -> None:
    async with running(tmp_path, SASL_PLAINTEXT, PROPERTIES) as broker:
        await set_password(broker.bootstrap, "carol", "first", iterations=8192)
    carol = login("SCRAM-SHA-512", "carol", "first")
    async with running(tmp_path, SASL_PLAINTEXT, PROPERTIES) as broker:
        async with Admin(broker.bootstrap, security=carol) as admin:
            users = await admin.list_scram_users()
            assert users["carol"] == {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192}
            assert users["broker"] == {"SCRAM-SHA-512": 4096}
            await admin.delete_scram_user("carol")
            with pytest.raises(ClientError, match="does not exist"):
                await admin.delete_scram_user("carol")
        with pytest.raises(ClientError):
            async with Admin(broker.bootstrap, security=carol):
                pass


async def test_iterations_outside_kafkas_range_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path, SASL_PLAINTEXT, PROPERTIES) as broker:
        for iterations in (4095, 16385):
            with pytest.raises(ClientError, match="iterations"):
                await set_password(broker.bootstrap, "alice", PASSWORD, iterations=iterations)


async def test_nothing_is_served_before_authentication(tmp_path: Path) -> None:
    async with running(tmp_path, SASL_PLAINTEXT, PROPERTIES) as broker:
        address = Address("127.0.0.1", broker.broker.context.endpoints.clients.port)
        connection = await open_connection(
            address, client_id="t", software_version="1", connect_timeout_ms=5000, request_timeout_ms=5000
        )
        body = {"topics": None, "allow_auto_topic_creation": True, "include_topic_authorized_operations": False}
        with pytest.raises(ConnectionLostError):
            await call(connection, METADATA, body, what="asking")
        for hostile in (b"\x7f\xff\xff\xff", (600_000).to_bytes(4, "big"), b"\0\0\0\x02ab", b"\0\0\0\0"):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(hostile)
            async with asyncio.timeout(WAIT_S):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            writer.close()


async def test_a_client_that_does_not_authenticate_in_time_is_closed(tmp_path: Path) -> None:
    properties = {**PROPERTIES, "ottla.authentication.timeout.ms": "100"}
    async with running(tmp_path, SASL_PLAINTEXT, properties) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.broker.context.endpoints.clients.port)
        async with asyncio.timeout(WAIT_S):
            assert await reader.read() == b""
        writer.close()


async def test_tokens_without_headers_after_the_first_version_of_the_handshake(tmp_path: Path) -> None:
    async with running(tmp_path, SASL_PLAINTEXT, PROPERTIES) as broker:
        port = broker.broker.context.endpoints.clients.port
        for token, reply in ((f"\0alice\0{PASSWORD}".encode(), b"\0\0\0\0"), (b"\0a\0b", b"")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            handshake = request_header(17, 0, 1, "t") + b"\0\x05PLAIN"
            writer.write(len(handshake).to_bytes(4, "big") + handshake)
            size = int.from_bytes(await reader.readexactly(4), "big")
            assert (await reader.readexactly(size))[4:6] == b"\0\0"
            writer.write(len(token).to_bytes(4, "big") + token)
            async with asyncio.timeout(WAIT_S):
                assert await reader.read(4) == reply
            writer.close()


async def test_a_session_ends_unless_the_client_authenticates_again(tmp_path: Path) -> None:
    properties = {**PROPERTIES, "connections.max.reauth.ms": "300"}
    async with running(tmp_path, SASL_PLAINTEXT, properties) as broker:
        address = Address("127.0.0.1", broker.broker.context.endpoints.clients.port)
        secure = login("PLAIN")
        connection = await Connection.open(
            address, client_id="t", timeout_ms=5000, request_timeout_ms=5000, security=secure
        )
        assert secure.login is not None
        await authenticate(connection, secure.login)
        assert principals(broker) == {"User:alice"}
        async with asyncio.timeout(WAIT_S):
            while principals(broker) == {"User:alice"}:  # noqa: ASYNC110 - nothing notifies of the end of a session
                await asyncio.sleep(0.01)
        await authenticate(connection, secure.login)  # a late client may still do so
        with pytest.raises(ClientError, match="rejected the login"):
            await authenticate(connection, SaslLogin("PLAIN", "bob", "of bob"))
        async with asyncio.timeout(WAIT_S):
            await connection.wait_ended()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sasl.enabled.mechanisms": "SCRAM-SHA-256"}, "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512"),
        ({"listener.name.sasl_plaintext.plain.sasl.jaas.config": "Module required;"}, "PLAIN needs users"),
        ({"listener.name.sasl_plaintext.plain.sasl.jaas.config": "secret"}, "cannot be read"),
    ],
)
async def test_a_broker_does_not_start_without_users_or_its_own_login(
    tmp_path: Path, change: dict[str, str], message: str
) -> None:
    with pytest.raises(BadSettingsError, match=message) as caught:
        async with running(tmp_path, SASL_PLAINTEXT, {**PROPERTIES, **change}):
            pass
    assert "secret" not in str(caught.value)

"""Certificates and settings of brokers for tests of security."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from ottla.broker.app import BrokerSettings, RunningBroker, start_broker
from ottla.net.private_authority import KeyPair, PrivateAuthority
from ottla.net.security import ConnectionSecurity, SaslLogin
from ottla.protocol.model.group_keys import DEVELOPMENT_DEFAULTS
from ottla.protocol.model.listeners import ListenerTable, SecurityProtocol, parse_listeners
from ottla.protocol.model.tls_settings import TlsSettings, parse_tls

AUTHORITY = PrivateAuthority.new()
BROKER = AUTHORITY.issue("broker", ["localhost", "127.0.0.1"])
ALICE = AUTHORITY.issue("alice", unit="people")


def tls_properties(keys: KeyPair | None = BROKER, authority: PrivateAuthority = AUTHORITY) -> dict[str, str]:
    values = {"ssl.truststore.certificates": authority.certificate}
    if keys is not None:
        values |= {"ssl.keystore.certificate.chain": keys.certificate, "ssl.keystore.key": keys.key}
    return values


def tls_settings(keys: KeyPair | None = None, **changes: str) -> TlsSettings:
    values = tls_properties(keys) | {name.replace("_", "."): value for name, value in changes.items()}
    parsed = parse_tls(values.get)
    assert isinstance(parsed, TlsSettings), parsed
    return parsed


def client_security(
    protocol: SecurityProtocol = SecurityProtocol.SSL, keys: KeyPair | None = None, login: SaslLogin | None = None
) -> ConnectionSecurity:
    return ConnectionSecurity(protocol, tls_settings(keys) if protocol.uses_tls else None, login)


@asynccontextmanager
async def running(directory: Path, listeners: str, properties: Mapping[str, str]) -> AsyncIterator[RunningBroker]:
    """Runs a standalone broker with these listeners; the first one in the list is that for clients."""
    values = {"listeners": listeners, **{name: value for name, value in properties.items() if name in OF_LISTENERS}}
    table = parse_listeners(values)
    assert isinstance(table, ListenerTable), table
    given = {name: value for name, value in properties.items() if name not in OF_LISTENERS}
    settings = BrokerSettings(
        data_dir=str(directory), port=0, properties={**DEVELOPMENT_DEFAULTS, **given}, listeners=table
    )
    broker = await start_broker(settings)
    try:
        yield broker
    finally:
        await broker.stop(1.0)


OF_LISTENERS = ("inter.broker.listener.name", "listener.security.protocol.map", "security.inter.broker.protocol")

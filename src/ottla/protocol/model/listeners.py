"""The listeners of a broker, under Kafka's names.

    listeners=CLIENT://0.0.0.0:9092,BROKER://10.0.0.1:9093
    advertised.listeners=CLIENT://kafka.example.org:9092,BROKER://10.0.0.1:9093
    inter.broker.listener.name=BROKER
    listener.security.protocol.map=CLIENT:SASL_SSL,BROKER:SSL

A broker may have any number of listeners. Clients are sent to the listener that they used for their request; brokers
connect to one another at the inter-broker listener. Listeners of a KRaft controller (`controller.listener.names`),
which Kafka's own files have, are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from ottla.protocol.model.errors import ErrorCode, Refused

LISTENERS, ADVERTISED = "listeners", "advertised.listeners"
INTER_BROKER, PROTOCOLS = "inter.broker.listener.name", "listener.security.protocol.map"
INTER_BROKER_PROTOCOL = "security.inter.broker.protocol"
CONTROLLERS = "controller.listener.names"

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_PORT_MAX = 65535


class SecurityProtocol(StrEnum):
    """How a listener encrypts its connections and authenticates its clients."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        """Whether clients authenticate with SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class ListenerAddress(NamedTuple):
    """One listener: the address to listen on, and the address to advertise."""

    name: str = SecurityProtocol.PLAINTEXT.value
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    host: str | None = None
    port: int | None = None
    advertised_host: str | None = None
    advertised_port: int | None = None
    """None if it equals the port listened on."""


class ListenerTable(NamedTuple):
    """The listeners of one broker."""

    client: ListenerAddress = ListenerAddress()
    """The first listener that is not reserved for brokers. Its address is the one that a broker prints at its start."""
    others: tuple[ListenerAddress, ...] = ()
    inter_broker: str = SecurityProtocol.PLAINTEXT.value
    """The name of the listener at which brokers connect to one another."""

    def all(self) -> tuple[ListenerAddress, ...]:
        """Returns every listener, that for clients first."""
        return (self.client, *self.others)

    def get(self, name: str) -> ListenerAddress | None:
        """Returns a listener by name."""
        return next((each for each in self.all() if each.name == name), None)


def parse_listeners(values: Mapping[str, str]) -> ListenerTable | Refused:
    """Parses the listener settings. The error message names the setting."""
    try:
        return _parse(values)
    except ValueError as failure:
        return Refused(ErrorCode.invalid_config, str(failure))


def _parse(values: Mapping[str, str]) -> ListenerTable:
    bound, advertised = _addresses(values, LISTENERS), _addresses(values, ADVERTISED)
    controllers = {name.strip().upper() for name in values.get(CONTROLLERS, "").split(",")}
    if bound and controllers.issuperset(bound):
        raise ValueError(f"{LISTENERS} has only controller listeners; a broker needs one for clients")
    bound, advertised = (
        {name: address for name, address in found.items() if name not in controllers} for found in (bound, advertised)
    )
    protocols = _protocols(values)
    names = list(bound or advertised) or [SecurityProtocol.PLAINTEXT.value]
    if unknown := [name for name in advertised if name not in names]:
        raise ValueError(f"{ADVERTISED} has {unknown[0]}, which {LISTENERS} does not have")
    listeners = [_listener(name, protocols, bound.get(name), advertised.get(name)) for name in names]
    internal = _inter_broker_name(values, names)
    client = next((each for each in listeners if each.name != internal), listeners[0])
    return ListenerTable(client, tuple(each for each in listeners if each is not client), internal)


def _listener(
    name: str,
    protocols: Mapping[str, str],
    bound: tuple[str | None, int] | None,
    advertised: tuple[str | None, int] | None,
) -> ListenerAddress:
    protocol = protocols.get(name, name)
    if protocol not in SecurityProtocol.__members__:
        known = ", ".join(SecurityProtocol)
        raise ValueError(f"set the protocol of the listener {name} with {PROTOCOLS}={name}:PROTOCOL (one of {known})")
    host, port = bound or (None, None)
    advertised_host, advertised_port = advertised or (None, None)
    return ListenerAddress(name, SecurityProtocol(protocol), host, port, advertised_host, advertised_port or None)


def _inter_broker_name(values: Mapping[str, str], names: list[str]) -> str:
    named, protocol = values.get(INTER_BROKER), values.get(INTER_BROKER_PROTOCOL)
    if named is not None and protocol is not None:
        raise ValueError(f"set {INTER_BROKER} or {INTER_BROKER_PROTOCOL}, not both")
    chosen = named if named is not None else protocol
    if chosen is not None:
        chosen = chosen.strip().upper()
        if chosen not in names:
            setting = INTER_BROKER if named is not None else INTER_BROKER_PROTOCOL
            raise ValueError(f"{setting}={chosen} is not a name in {LISTENERS}")
        return chosen
    if len(names) == 1:
        return names[0]
    if SecurityProtocol.PLAINTEXT.value in names:  # Kafka's default
        return SecurityProtocol.PLAINTEXT.value
    raise ValueError(f"choose which of {' and '.join(names)} is for the other brokers with {INTER_BROKER}=NAME")


def _addresses(values: Mapping[str, str], setting: str) -> dict[str, tuple[str | None, int]]:
    found: dict[str, tuple[str | None, int]] = {}
    for text in values.get(setting, "").split(",") if values.get(setting) else []:
        name, separator, address = text.strip().rpartition("://")
        name = name.upper() if separator else SecurityProtocol.PLAINTEXT.value
        host, colon, port = address.rpartition(":")
        if not _NAME.fullmatch(name) or not colon or not port.isascii() or not port.isdigit() or int(port) > _PORT_MAX:
            raise ValueError(f"{setting}={text.strip()} is not NAME://HOST:PORT")
        if name in found:
            raise ValueError(f"{setting} has {name} twice")
        found[name] = host.strip("[]") or None, int(port)
    return found


def _protocols(values: Mapping[str, str]) -> dict[str, str]:
    pairs = [pair.strip().partition(":") for pair in values.get(PROTOCOLS, "").split(",") if pair.strip()]
    if any(not key or not protocol for key, _, protocol in pairs):
        raise ValueError(f"{PROTOCOLS}={values[PROTOCOLS]} is not a list of NAME:PROTOCOL")
    return {key.strip().upper(): protocol.strip().upper() for key, _, protocol in pairs}

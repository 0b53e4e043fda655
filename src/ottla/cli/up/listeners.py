"""Parses a broker's listeners, under Kafka's names: `listeners`, `advertised.listeners`, `inter.broker.listener.name`.

    listeners=CLIENT://0.0.0.0:9092,BROKER://10.0.0.1:9093
    advertised.listeners=CLIENT://kafka.example.org:9092,BROKER://10.0.0.1:9093
    inter.broker.listener.name=BROKER
    listener.security.protocol.map=CLIENT:PLAINTEXT,BROKER:PLAINTEXT

A broker has one listener for clients, and may have a second one for other brokers. Both speak PLAINTEXT. Listeners of a
KRaft controller (`controller.listener.names`), which Kafka's own files have, are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ottla.cli.failures import CommandError

LISTENERS, ADVERTISED = "listeners", "advertised.listeners"
INTER_BROKER, PROTOCOLS = "inter.broker.listener.name", "listener.security.protocol.map"
CONTROLLERS = "controller.listener.names"
PLAINTEXT = "PLAINTEXT"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class Address(NamedTuple):
    """A host and a port."""

    host: str | None
    port: int


class Listener(NamedTuple):
    """The address to listen on, and the address to advertise."""

    host: str | None = None
    port: int | None = None
    advertised_host: str | None = None
    advertised_port: int | None = None
    """None if it equals the port listened on."""


class Listeners(NamedTuple):
    """The listeners of one broker."""

    client: Listener = Listener()
    inter_broker: Listener | None = None
    """None if brokers use the listener for clients."""


def parse_listeners(values: Mapping[str, str], path: Path) -> Listeners:
    """Parses the listener settings. Raises FailedError with a message that names the file and the setting."""
    bound, advertised = _addresses(values, LISTENERS, path), _addresses(values, ADVERTISED, path)
    controllers = {name.strip() for name in values.get(CONTROLLERS, "").split(",")}
    if bound and controllers.issuperset(bound):
        raise CommandError(f"{path}: {LISTENERS} has only controller listeners; a broker needs one for clients")
    bound, advertised = (
        {name: address for name, address in found.items() if name not in controllers} for found in (bound, advertised)
    )
    names = list(bound or advertised)
    for name in names:
        _demand_plaintext(name, values, path)
    if unknown := [name for name in advertised if name not in names]:
        raise CommandError(f"{path}: {ADVERTISED} has {unknown[0]}, which {LISTENERS} does not have")
    internal = values.get(INTER_BROKER)
    if internal is not None and internal not in names:
        raise CommandError(f"{path}: {INTER_BROKER}={internal} is not a name in {LISTENERS}")
    if len(names) > 2:
        raise CommandError(
            f"{path}: {LISTENERS} has {len(names)}; a broker supports one for clients and one for brokers"
        )
    if len(names) == 2 and internal is None:
        raise CommandError(
            f"{path}: choose which of {' and '.join(names)} is for the other brokers with {INTER_BROKER}=NAME"
        )
    found = {name: _listener(bound.get(name), advertised.get(name)) for name in names}
    if internal is None or len(names) == 1:
        return Listeners(*found.values())
    (client,) = (name for name in names if name != internal)
    return Listeners(found[client], found[internal])


def _listener(bound: Address | None, advertised: Address | None) -> Listener:
    host, port = bound or (None, None)
    advertised_host, advertised_port = advertised or (None, None)
    return Listener(host, port, advertised_host, advertised_port or None)


def _addresses(values: Mapping[str, str], setting: str, path: Path) -> dict[str, Address]:
    found: dict[str, Address] = {}
    for text in values.get(setting, "").split(",") if values.get(setting) else []:
        name, separator, address = text.strip().rpartition("://")
        name = name if separator else PLAINTEXT
        host, colon, port = address.rpartition(":")
        if not _NAME.fullmatch(name) or not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise CommandError(f"{path}: {setting}={text.strip()} is not PLAINTEXT://HOST:PORT")
        if name in found:
            raise CommandError(f"{path}: {setting} has {name} twice")
        found[name] = Address(host.strip("[]") or None, int(port))
    return found


def _demand_plaintext(name: str, values: Mapping[str, str], path: Path) -> None:
    pairs = [pair.strip().partition(":") for pair in values.get(PROTOCOLS, "").split(",") if pair.strip()]
    if any(not key or not protocol for key, _, protocol in pairs):
        raise CommandError(f"{path}: {PROTOCOLS}={values[PROTOCOLS]} is not a list of NAME:PROTOCOL")
    protocol = {key: protocol for key, _, protocol in pairs}.get(name, name)
    if protocol == PLAINTEXT:
        return
    if protocol in ("SSL", "SASL_PLAINTEXT", "SASL_SSL"):
        raise CommandError(f"{path}: the listener {name} uses {protocol}; this version supports PLAINTEXT only")
    raise CommandError(f"{path}: set the protocol of the listener {name} with {PROTOCOLS}={name}:{PLAINTEXT}")

"""Addresses of brokers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Endpoint(NamedTuple):
    """A host and port to connect to."""

    host: str
    port: int


class Node(NamedTuple):
    """A broker in the metadata for clients."""

    id: int
    host: str
    port: int
    rack: str | None
    wal_port: int = 0
    """Port of its append stream; 0 if it has none."""


class ClientAddress(NamedTuple):
    """Where a connection comes from, and the listener that accepted it."""

    host: str
    port: int
    listener: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


NOT_LISTENING = Endpoint("127.0.0.1", 0)


@dataclass(slots=True)
class AdvertisedEndpoints:
    """The addresses that this broker advertises. They are known once its listeners are open."""

    clients: Endpoint = NOT_LISTENING
    """The address of the first listener for clients."""
    brokers: Endpoint | None = None
    """The address for other brokers, if it differs from the one for clients."""
    by_listener: dict[str, Endpoint] = field(default_factory=dict)
    """The addresses of all listeners by name; empty if there is only one, without a name."""
    wal_port: int = 0
    """Port of the append stream; 0 if there is none."""

    @property
    def for_brokers(self) -> Endpoint:
        """The address at which other brokers connect."""
        return self.brokers or self.clients

    def of_listener(self, name: str) -> Endpoint | None:
        """Returns the address that clients of a listener use; None if there is no such listener."""
        return self.by_listener.get(name) if self.by_listener else self.clients

"""Addresses of brokers."""

from __future__ import annotations

from dataclasses import dataclass
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


NOT_LISTENING = Endpoint("127.0.0.1", 0)


@dataclass(slots=True)
class AdvertisedEndpoints:
    """The addresses that this broker advertises. They are known once its listeners are open."""

    clients: Endpoint = NOT_LISTENING
    brokers: Endpoint | None = None
    """The address for other brokers, if it differs from the one for clients."""
    wal_port: int = 0
    """Port of the append stream; 0 if there is none."""

    @property
    def for_brokers(self) -> Endpoint:
        """The address at which other brokers connect."""
        return self.brokers or self.clients

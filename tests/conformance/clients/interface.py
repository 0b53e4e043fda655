"""The interface that the tests use for every client, and the optional features of clients."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TypeVar

from ottla.protocol.model.errors import ErrorCode

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
REQUEST_BYTES_MAX = 16 * 1024 * 1024
TIMEOUT_S = 60.0

T = TypeVar("T")
Headers = tuple[tuple[str, bytes | None], ...]


class Ability(Enum):
    """Features that not every client has."""

    ADMIN = auto()
    IDEMPOTENCE = auto()
    HEADERS = auto()
    TIMESTAMPS = auto()
    OFFSETS_OF_WRITES = auto()
    INCREMENTAL_CONFIGS = auto()
    DELETE_RECORDS = auto()
    ERROR_OF_WRITE = auto()


@dataclass(frozen=True, slots=True)
class Record:
    """A record to write, or one that was read."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int = 0
    offset: int | None = None

    def content(self) -> Record:
        """Returns the record without the fields that the broker adds."""
        return replace(self, offset=None, timestamp_ms=None)


class RefusedByBroker(Exception):  # noqa: N818 - named after the event
    """A client reported one of Kafka's errors."""

    def __init__(self, code: int, message: str | None) -> None:
        self.error = ErrorCode(code)
        self.message = message or ""
        super().__init__(f"{self.error.name}: {self.message}")


def until_led(call: Callable[[], T]) -> T:
    """Retries a call for libraries that ask the leader only once and leave retries to their users."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return call()
        except RefusedByBroker as refused:
            if refused.error is not ErrorCode.not_leader_or_follower or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


class Client(ABC):
    """One client library. Every call is self-contained: it connects, does its work and waits for the outcome."""

    name: str
    abilities: frozenset[Ability]

    def __init__(self, bootstrap: str, replicas: int = 1) -> None:
        self.bootstrap = bootstrap
        self.replicas = replicas
        """The replication factor of the topics that it creates."""

    @abstractmethod
    def create_topic(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None: ...

    @abstractmethod
    def write(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        idempotent: bool = True,
        acks: int = -1,
        pause_ms: float = 0,
    ) -> list[int]:
        """Writes records in order, with a pause after each, and waits for the acknowledgements. Returns the offsets."""

    @abstractmethod
    def read(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Record]:
        """Reads by assignment from an offset on until it has that many records, or for some seconds."""

    @abstractmethod
    def topics(self) -> dict[str, int]:
        """Returns names and partition counts."""

    @abstractmethod
    def offset_for_time(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        """Returns the first offset at or after a time; None if there is none."""

    def delete_topic(self, topic: str) -> None:
        raise NotImplementedError

    def create_partitions(self, topic: str, total: int) -> None:
        raise NotImplementedError

    def configs(self, topic: str) -> dict[str, str | None]:
        raise NotImplementedError

    def broker_configs(self, broker_id: int) -> dict[str, str | None]:
        raise NotImplementedError

    def alter_config(self, topic: str, name: str, value: str) -> None:
        raise NotImplementedError

    def delete_records(self, topic: str, before: int, *, partition: int = 0) -> int:
        """Deletes records and returns the new first offset."""
        raise NotImplementedError

    def ends(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        """Returns the first offset and the one after the last."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - most clients have nothing to close
        """Stops everything that the client runs."""

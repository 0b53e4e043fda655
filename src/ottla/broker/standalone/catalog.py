"""The port for the broker's durable metadata: topics, dynamic settings, reserved ids and offsets, ACLs.

Every method blocks until the change is on stable storage. The broker calls the methods on a disk thread, one at a time.
A full disk, a lock or corruption raises an OSError whose message says what to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from ottla.broker.blocking_jobs import run_blocking
from ottla.ports import DiskQueue
from ottla.protocol.model.ids import TopicId

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic as the catalog stores it."""

    name: str
    id: TopicId
    partition_count: int
    overrides: dict[str, str]
    created_ms: int


@dataclass(slots=True)
class CatalogState:
    """The whole content of the catalog, as read at start-up."""

    cluster_id: str
    incarnation: int
    topics: list[TopicRecord] = field(default_factory=list)
    dynamic_configs: dict[str, str] = field(default_factory=dict)
    next_producer_id: int = 0
    reserved_offsets: dict[tuple[TopicId, int], int] = field(default_factory=dict)
    entries: dict[str, bytes] = field(default_factory=dict)
    """Other metadata, such as ACLs, by the keys that it has in the coordination store of a cluster."""
    deleted: frozenset[TopicId] = frozenset()
    """Deleted topics that may still have files on the disk."""


class Catalog(Protocol):
    """Durable storage for the metadata of one broker."""

    def load(self) -> CatalogState:
        """Returns the whole metadata."""
        ...

    def begin_incarnation(self) -> int:
        """Increments the number of starts of this broker. The number is its leader epoch until the next start."""
        ...

    def put_topic(self, topic: TopicRecord) -> None:
        """Creates or replaces a topic."""
        ...

    def put_topics(self, topics: Sequence[TopicRecord]) -> None:
        """Creates or replaces several topics in one transaction."""
        ...

    def delete_topic(self, topic_id: TopicId, gone: Iterable[TopicId] = ()) -> None:
        """Deletes a topic and remembers its id, so that files left over by a crash are recognised (safety:
        topic-identity). `gone` lists deleted topics that have no files left; their ids are forgotten."""
        ...

    def forget_deleted(self, gone: Iterable[TopicId]) -> None:
        """Forgets the ids of deleted topics that have no files left."""
        ...

    def put_dynamic_configs(self, configs: Mapping[str, str]) -> None:
        """Replaces all dynamic settings."""
        ...

    def change_entries(self, puts: Mapping[str, bytes], deletes: Iterable[str] = ()) -> None:
        """Puts and deletes other metadata by key, in one transaction."""
        ...

    def reserve_producer_ids(self, count: int) -> int:
        """Reserves `count` consecutive ids for the caller and returns the first."""
        ...

    def reserve_offsets(self, ends: Mapping[tuple[TopicId, int], int]) -> None:
        """Reserves offsets for memory logs: after a restart, the log of a topic and partition continues at or above its
        offset in `ends`."""
        ...

    def close(self) -> None:
        """Closes the catalog. Every change is already durable."""
        ...


class CatalogAccess:
    """Runs calls of a catalog in order, on a disk thread of their own."""

    def __init__(self, catalog: Catalog, queue: DiskQueue) -> None:
        self.blocking = catalog
        """The catalog itself, for start-up."""
        self._queue = queue

    def run(self, call: Callable[[Catalog], T]) -> asyncio.Future[T]:
        """Runs a call and returns a future of its result. Raises OSError if the catalog cannot be written."""
        catalog = self.blocking
        return run_blocking(self._queue, lambda: call(catalog))

"""The broker's durable metadata, as a port: topics, dynamic settings, reserved ids and offsets.

Every method blocks until the change is on stable storage; the broker calls them on a disk thread, one at a time.
A full disk, a lock or damage is an OSError whose text says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ottla.model.ids import TopicId


@dataclass(frozen=True, slots=True)
class TopicRecord:
    name: str
    id: TopicId
    partition_count: int
    overrides: dict[str, str]
    created_ms: int


@dataclass(slots=True)
class CatalogState:
    cluster_id: str
    incarnation: int
    topics: list[TopicRecord] = field(default_factory=list)
    dynamic_configs: dict[str, str] = field(default_factory=dict)
    next_producer_id: int = 0
    reserved_offsets: dict[tuple[TopicId, int], int] = field(default_factory=dict)
    deleted: frozenset[TopicId] = frozenset()
    """Topics that were deleted and may have left something on the disk."""


class Catalog(Protocol):
    def load(self) -> CatalogState: ...

    def begin_incarnation(self) -> int:
        """Counts the starts of this broker; the number is its leader epoch until the next one."""
        ...

    def put_topic(self, topic: TopicRecord) -> None: ...

    def put_topics(self, topics: Sequence[TopicRecord]) -> None: ...

    def delete_topic(self, topic_id: TopicId, gone: Iterable[TopicId] = ()) -> None:
        """The id is remembered, so that what a crash leaves of the topic is known for what it is (SAFETY 26). `gone`
        are deleted topics of which nothing is left: they need not be remembered any more."""
        ...

    def forget_deleted(self, gone: Iterable[TopicId]) -> None: ...

    def put_dynamic_configs(self, configs: Mapping[str, str]) -> None:
        """Replaces all of them."""
        ...

    def reserve_producer_ids(self, count: int) -> int:
        """The first of `count` ids that nobody else will get."""
        ...

    def reserve_offsets(self, ends: Mapping[tuple[TopicId, int], int]) -> None:
        """A memory log of this topic and partition goes on at or above this offset after a restart."""
        ...

    def close(self) -> None: ...

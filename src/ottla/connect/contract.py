"""The interface of a connector: a small class with a few methods that the framework calls. See docs/guides/connect.md.

A source writes records to topics; a sink reads records from topics. Each connector runs in a process of its own, which
may be killed at any time. A restarted source resumes from its position in the log, a restarted sink from the offsets in
its target.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ottla.client.consumer.types import ConsumerRecord, TopicPartition

Position = dict[str, Any]
"""Where a source resumes. The source chooses the content, which must be serializable as JSON."""
Header = tuple[str, bytes | None]


@dataclass(slots=True)
class Rows:
    """Records of one topic, in order."""

    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: dict[int, Sequence[Header]] = field(default_factory=dict)
    """Headers by row number. Rows without headers have no entry."""

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """Appends a record without headers."""
        self.keys.append(key)
        self.values.append(value)

    def __len__(self) -> int:
        return len(self.values)


@dataclass(slots=True)
class SourceBatch:
    """Records that are written to the log in one transaction, together with the position after them."""

    rows: dict[str, Rows]
    """Records by topic. A missing topic is created even if it has no rows, so that its readers need not wait for the
    first."""
    position: Position

    @property
    def record_count(self) -> int:
        """The number of records, over all topics."""
        return sum(len(each) for each in self.rows.values())


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings of a topic that is created for a source."""

    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    only_partition: bool = False
    """If true, an existing topic with more than one partition is rejected."""


@runtime_checkable
class Source(Protocol):
    """A connector that writes records to topics."""

    def topic_settings(self, topic: str) -> TopicSettings:
        """Returns the settings for a new topic. Called once per topic, before its first record."""

    async def start(self, position: Position | None) -> None:
        """Resumes after the last committed position; None means from the beginning."""

    async def poll(self) -> SourceBatch | None:
        """Returns the next records, at most about ten thousand records or a few megabytes.

        Returns None if there are no records for about a second.
        """

    async def commit(self, position: Position) -> None:
        """Notifies the source that everything up to `position` is durable in the log, so the external system may
        discard it.

        A `poll` may be in progress.
        """

    async def stop(self) -> None:
        """Releases all resources. Called after success and after failure; uncommitted records do not count."""

    def describe(self) -> dict[str, Any]:
        """Returns what `ottla connect status` shows: position, lag and so on."""


DeadLetters = Callable[[ConsumerRecord, str], Awaitable[None]]
"""Writes a record and the reason for its rejection to the dead-letter topic.

The record is acknowledged when the call returns. Raises NeedsHelpError if no dead-letter topic is configured.
"""


class Sink(Protocol):
    """A connector that reads records from topics."""

    topics: Sequence[str]
    """The topics to read, each with all of its partitions."""
    may_begin_late: bool
    """If true, a partition that the sink has never read may begin after offset 0, at the oldest record that retention
    has kept."""

    @property
    def paused(self) -> Collection[TopicPartition]:
        """The partitions to stop fetching for now. Read after each `put`."""

    async def start(self, dead_letters: DeadLetters) -> Mapping[TopicPartition, int]:
        """Returns the next offset of each partition, as recorded in the target."""

    async def put(self, records: Sequence[ConsumerRecord]) -> None:
        """Accepts records, which are in order within each partition. The sink may buffer them until `commit`."""

    async def commit(self) -> None:
        """Makes the records durable in the target, together with the offsets that `start` returns.

        Records that must be applied as a unit stay pending until the unit is complete.
        """

    async def stop(self) -> None:
        """Releases all resources. Called after success and after failure; uncommitted records are discarded."""

    def describe(self) -> dict[str, Any]:
        """Returns what `ottla connect status` shows."""


class Reports(Protocol):
    """Receives the state of a connector."""

    def progress(self, facts: dict[str, Any]) -> None:
        """Reports that the connector runs. `ottla connect status` shows `facts`."""

    def waiting(self, reason: str) -> None:
        """Reports that the connector is retrying after a failure that may be temporary."""


@runtime_checkable
class Follower(Protocol):
    """A connector that writes its log through the append stream instead of the framework's producer.

    It finds where to resume in that log. The framework only supervises it.
    """

    async def follow(self, stopping: asyncio.Event, reports: Reports) -> None:
        """Runs until `stopping` is set. Raises if it cannot continue."""

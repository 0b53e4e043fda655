"""The contract of a connector: a small class with four methods, which the frame drives. docs/connect.md explains it.

A source brings records into topics, a sink takes them out. Both run in a process of their own, which may be killed at
any time; whoever starts it again gets from the log, or from the sink's own target, where to go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ottla.client.fetched import ConsumerRecord, TopicPartition

Position = dict[str, Any]
"""Where a source goes on: whatever it needs, as JSON."""
Header = tuple[str, bytes | None]


@dataclass(slots=True)
class Rows:
    """Records of one topic, in their order."""

    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: dict[int, Sequence[Header]] = field(default_factory=dict)
    """By the number of the row; few rows have some."""

    def add(self, key: bytes | None, value: bytes | None) -> None:
        self.keys.append(key)
        self.values.append(value)

    def __len__(self) -> int:
        return len(self.values)


@dataclass(slots=True)
class SourceBatch:
    """What goes into the log as one transaction, with the position after it."""

    rows: dict[str, Rows]
    """By topic. A topic that is missing is created, also for no rows: its readers need not wait for the first one."""
    position: Position

    @property
    def record_count(self) -> int:
        return sum(len(each) for each in self.rows.values())


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Of topics that are created for a source."""

    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    only_partition: bool = False
    """Whether a topic of this name that has more partitions is refused."""


@runtime_checkable
class Source(Protocol):
    def topic_settings(self, topic: str) -> TopicSettings:
        """Asked once for each topic, before its first record."""

    async def start(self, position: Position | None) -> None:
        """Goes on at the position that was committed last; None is the very beginning."""

    async def poll(self) -> SourceBatch | None:
        """The next records, some ten thousand or some megabytes at most; None if nothing comes for a second or so."""

    async def commit(self, position: Position) -> None:
        """Everything up to there is in the log for good: what it came from may forget it. A `poll` may be under way."""

    async def stop(self) -> None:
        """The end, in good and in bad times. Nothing that was not committed counts."""

    def describe(self) -> dict[str, Any]:
        """What `ottla connect status` shows: position, lag..."""


DeadLetters = Callable[[ConsumerRecord, str], Awaitable[None]]
"""Sets a record aside, with the reason. It is in the dead-letter topic when this returns; raises if there is none."""


class Sink(Protocol):
    topics: Sequence[str]
    """What it reads, with all partitions."""
    may_begin_late: bool
    """Whether a partition that is new to it may begin with what retention has left of it."""

    @property
    def paused(self) -> Collection[TopicPartition]:
        """Of which it has enough for now. Asked after each `put`."""

    async def start(self, dead_letters: DeadLetters) -> Mapping[TopicPartition, int]:
        """The next offset of each partition, as the target has it."""

    async def put(self, records: Sequence[ConsumerRecord]) -> None:
        """In the order of each partition. It may keep them in memory until `commit`."""

    async def commit(self) -> None:
        """What was put is in the target for good, with the offsets that `start` gives: as far as it can be, for what
        must go there as a whole may not have come as a whole yet."""

    async def stop(self) -> None:
        """The end, in good and in bad times. What was put and not committed is forgotten."""

    def describe(self) -> dict[str, Any]:
        """What `ottla connect status` shows."""


class Reports(Protocol):
    def progress(self, facts: dict[str, Any]) -> None:
        """It runs, and this is what `ottla connect status` shows of it."""

    def waiting(self, reason: str) -> None:
        """It tries again by itself, after something that may pass."""


@runtime_checkable
class Follower(Protocol):
    """Keeps a log by itself, past the frame's producer: where it goes on is in that log. The frame supervises it."""

    async def follow(self, stopping: asyncio.Event, reports: Reports) -> None:
        """Until `stopping`. Raises what ends it before."""

"""What the coordinator of one partition of `__consumer_offsets` holds, and the step that it is taking.

A step changes what survives only by `emit`, which applies the record at once and hands it out to be appended. So what a
running coordinator knows is what its log says, and nothing has to be undone: if an append fails, the whole shard is
dropped and another is loaded from the log (ADR 10).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.machines.groups.classic_group import ClassicGroup
from ottla.machines.groups.config import GroupConfig
from ottla.machines.groups.records import OffsetRecord, Record, TopicFacts
from ottla.machines.groups.replies import Reply
from ottla.machines.groups.tables import Tables
from ottla.machines.groups.timers import TimerKind, TimerName, Timers
from ottla.model.ids import TopicId

Ticket = Any
"""Whatever the caller gives with a request; a reply comes with it."""


class Instant(NamedTuple):
    elapsed_ms: int
    """Of a clock that never jumps: time-outs are counted on it."""
    wall_ms: int
    """What time stamps in records say."""


class Appended(NamedTuple):
    record: Record
    producer_id: int | None = None
    """The record is part of this producer's transaction."""
    producer_epoch: int = -1


class Answer(NamedTuple):
    ticket: Ticket
    reply: Reply


@dataclass(frozen=True, slots=True)
class Step:
    """Append the records as one batch (one for each producer id); let the answers go when the watermark has reached
    the log's end as it was then, also if there are no records; call `tick` at the deadline."""

    records: tuple[Appended, ...]
    answers: tuple[Answer, ...]
    deadline_ms: int | None
    """On the clock of `Instant.elapsed_ms`."""


class Shard:
    def __init__(self, config: GroupConfig, tables: Tables) -> None:
        self.config = config
        self.tables = tables
        self.classic: dict[str, ClassicGroup] = {}
        """Groups of the classic protocol: their last generation, and who is joining the next one."""
        self.timers = Timers()
        self.topics: Mapping[str, TopicFacts] = {}
        self.topic_names: Mapping[TopicId, str] = {}
        self.unresolved: set[str] = set()
        """Groups with regular expressions that have to be resolved."""
        self.now = Instant(0, 0)
        self._records: list[Appended] = []
        self._answers: list[Answer] = []
        self.waiting = 0
        """Tickets that are not answered yet."""

    # -- a step ----------------------------------------------------------------------------------------------------

    def begin(self, now: Instant) -> None:
        assert not self._records, "one step at a time"
        assert not self._answers, "one step at a time"
        self.now = now

    def end(self) -> Step:
        step = Step(tuple(self._records), tuple(self._answers), self.timers.next_ms())
        self._records.clear()
        self._answers.clear()
        return step

    def emit(self, record: Record) -> None:
        self._records.append(Appended(record))
        self.tables.apply(record)

    def emit_in_transaction(self, record: OffsetRecord, producer_id: int, producer_epoch: int) -> None:
        self._records.append(Appended(record, producer_id, producer_epoch))
        self.tables.apply(record, producer_id)

    def answer(self, ticket: Ticket, reply: Reply) -> None:
        self.waiting -= 1
        self._answers.append(Answer(ticket, reply))

    # -- deadlines -------------------------------------------------------------------------------------------------

    def start_timer(self, kind: TimerKind, group: str, timeout_ms: int, member_id: str = "") -> None:
        self.timers.set(TimerName(kind, group, member_id), self.now.elapsed_ms + timeout_ms)

    def stop_timer(self, kind: TimerKind, group: str, member_id: str = "") -> None:
        self.timers.cancel(TimerName(kind, group, member_id))

    def stop_member_timers(self, group: str, member_id: str) -> None:
        for kind in (TimerKind.SESSION, TimerKind.REVOCATION, TimerKind.MEMBER_JOIN, TimerKind.MEMBER_SYNC):
            self.timers.cancel(TimerName(kind, group, member_id))

    # -- groups ----------------------------------------------------------------------------------------------------

    def group_names(self) -> set[str]:
        return {*self.classic, *self.tables.consumer, *self.tables.offsets.groups()}

    def exists(self, group: str) -> bool:
        return group in self.classic or group in self.tables.consumer or self.tables.offsets.has_group(group)

    def forget_if_bare(self, group: str) -> None:
        """A classic group without members, of which no record speaks, was never there."""
        found = self.classic.get(group)
        if found is not None and found.is_bare and group not in self.tables.classic:
            del self.classic[group]
            self.stop_timer(TimerKind.JOIN, group)
            self.stop_timer(TimerKind.SYNC, group)

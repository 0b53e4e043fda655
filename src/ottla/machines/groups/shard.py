"""The state of the coordinator of one partition of `__consumer_offsets`, and the step it is taking.

A step changes durable state only through `emit`, which applies the record at once and hands it out to be appended. A
running coordinator therefore knows what its log says, and nothing has to be undone: if an append fails, the whole shard
is dropped and another is loaded from the log (ADR 10).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.machines.coordinators import Instant, Ticket
from ottla.machines.groups.classic_group import ClassicGroup
from ottla.machines.groups.config import GroupConfig
from ottla.machines.groups.records import OffsetRecord, Record, TopicFacts
from ottla.machines.groups.replies import Reply
from ottla.machines.groups.tables import Tables
from ottla.machines.groups.timers import TimerKind, TimerName, Timers
from ottla.protocol.model.ids import TopicId


class Appended(NamedTuple):
    """A record to append, perhaps as part of a transaction."""

    record: Record
    producer_id: int | None = None
    """The producer whose transaction contains the record; None if it is not transactional."""
    producer_epoch: int = -1


class Answer(NamedTuple):
    """A reply, with the ticket of its request."""

    ticket: Ticket
    reply: Reply


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one step. The caller appends `records` as one batch (one for each producer id). It sends the
    answers when the high watermark has reached the log end offset of that moment, even if there are no records. It
    calls `tick` at the deadline."""

    records: tuple[Appended, ...]
    answers: tuple[Answer, ...]
    deadline_ms: int | None
    """Deadline on the clock of `Instant.elapsed_ms`."""


class Shard:
    """The coordinator's tables, classic groups and timers, and the output of the current step."""

    def __init__(self, config: GroupConfig, tables: Tables) -> None:
        self.config = config
        self.tables = tables
        self.classic: dict[str, ClassicGroup] = {}
        """Groups of the classic protocol: their last generation, and the members joining the next one."""
        self.timers = Timers()
        self.topics: Mapping[str, TopicFacts] = {}
        self.topic_names: Mapping[TopicId, str] = {}
        self.unresolved: set[str] = set()
        """Groups with regular expressions that have to be resolved."""
        self.now = Instant(0, 0)
        self._records: list[Appended] = []
        self._answers: list[Answer] = []
        self.waiting = 0
        """Number of tickets without a reply."""

    # -- a step ----------------------------------------------------------------------------------------------------

    def begin(self, now: Instant) -> None:
        """Starts a step at this time."""
        assert not self._records, "one step at a time"
        assert not self._answers, "one step at a time"
        self.now = now

    def end(self) -> Step:
        """Ends the step and returns its output."""
        step = Step(tuple(self._records), tuple(self._answers), self.timers.next_ms())
        self._records.clear()
        self._answers.clear()
        return step

    def emit(self, record: Record) -> None:
        """Adds a record to the step and applies it."""
        self._records.append(Appended(record))
        self.tables.apply(record)

    def emit_in_transaction(self, record: OffsetRecord, producer_id: int, producer_epoch: int) -> None:
        """Appends an offset record as part of a producer's transaction and applies it as pending."""
        self._records.append(Appended(record, producer_id, producer_epoch))
        self.tables.apply(record, producer_id)

    def answer(self, ticket: Ticket, reply: Reply) -> None:
        """Sends the reply to a ticket, once the records of the current step are committed."""
        self.waiting -= 1
        self._answers.append(Answer(ticket, reply))

    # -- deadlines -------------------------------------------------------------------------------------------------

    def start_timer(self, kind: TimerKind, group: str, timeout_ms: int, member_id: str = "") -> None:
        """Starts a timer, or moves it if it runs already."""
        self.timers.set(TimerName(kind, group, member_id), self.now.elapsed_ms + timeout_ms)

    def stop_timer(self, kind: TimerKind, group: str, member_id: str = "") -> None:
        """Stops a timer, if it runs."""
        self.timers.cancel(TimerName(kind, group, member_id))

    def stop_member_timers(self, group: str, member_id: str) -> None:
        """Stops all timers of a member."""
        for kind in (TimerKind.SESSION, TimerKind.REVOCATION, TimerKind.MEMBER_JOIN, TimerKind.MEMBER_SYNC):
            self.timers.cancel(TimerName(kind, group, member_id))

    # -- groups ----------------------------------------------------------------------------------------------------

    def group_names(self) -> set[str]:
        """Returns the names of all groups, those that only have offsets included."""
        return {*self.classic, *self.tables.consumer, *self.tables.offsets.groups()}

    def exists(self, group: str) -> bool:
        """Returns whether the group has members, a record or offsets."""
        return group in self.classic or group in self.tables.consumer or self.tables.offsets.has_group(group)

    def forget_if_bare(self, group: str) -> None:
        """Drops a classic group that has no members and no record."""
        found = self.classic.get(group)
        if found is not None and found.is_bare and group not in self.tables.classic:
            del self.classic[group]
            self.stop_timer(TimerKind.JOIN, group)
            self.stop_timer(TimerKind.SYNC, group)

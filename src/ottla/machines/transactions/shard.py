"""What the coordinator of one partition of `__transaction_state` holds, and the step that it is taking.

A step changes what survives only by `emit`, which applies the record at once and hands it out to be appended. If an
append fails, the whole shard is dropped and another is loaded from the log (ADR 10, ADR 12).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ottla.machines.transactions.config import TransactionConfig
from ottla.machines.transactions.decisions import Decisions
from ottla.machines.transactions.effects import AllocateProducerId, Effect
from ottla.machines.transactions.records import TopicPartition, Transaction, TransactionRecord
from ottla.machines.transactions.replies import Reply
from ottla.machines.transactions.requests import Request
from ottla.machines.transactions.timers import TimerKind, TimerName, Timers

Ticket = Any
"""Whatever the caller gives with a request; a reply comes with it."""

Tables = dict[str, Transaction]
"""All that survives a failover, by transactional id."""


class Instant(NamedTuple):
    elapsed_ms: int
    """Of a clock that never jumps: time-outs are counted on it."""
    wall_ms: int
    """What time stamps in records say."""


class Answer(NamedTuple):
    ticket: Ticket
    reply: Reply


@dataclass(frozen=True, slots=True)
class Step:
    """Append the records as one batch; let the answers go and begin the effects when the watermark has reached the
    log's end as it was then, also if there are no records; call `tick` at the deadline."""

    records: tuple[TransactionRecord, ...]
    answers: tuple[Answer, ...]
    effects: tuple[Effect, ...]
    deadline_ms: int | None
    """On the clock of `Instant.elapsed_ms`."""


@dataclass(slots=True)
class MarkerProgress:
    """A prepared transaction: which of its partitions have no marker yet."""

    unmarked: set[TopicPartition]
    in_flight: set[TopicPartition] = field(default_factory=set)
    failures: int = 0


class Shard:
    def __init__(self, config: TransactionConfig, tables: Tables, decisions: Decisions) -> None:
        self.config = config
        self.tables = tables
        self.decisions = decisions
        self.coordinator_epoch = -1
        self.timers = Timers()
        self.markers: dict[str, MarkerProgress] = {}
        self.now = Instant(0, 0)
        self.waiting = 0
        """Tickets that are not answered yet."""
        self._waiting_for_ids: dict[str, list[tuple[Ticket, Request]]] = {}
        self._spare_ids: dict[str, int] = {}
        self._records: list[TransactionRecord] = []
        self._answers: list[Answer] = []
        self._effects: list[Effect] = []

    # -- a step ----------------------------------------------------------------------------------------------------

    def begin(self, now: Instant) -> None:
        is_ended = not self._records and not self._answers and not self._effects
        assert is_ended, "one step at a time"
        self.now = now

    def end(self) -> Step:
        step = Step(tuple(self._records), tuple(self._answers), tuple(self._effects), self.timers.next_ms())
        self._records.clear()
        self._answers.clear()
        self._effects.clear()
        return step

    def emit(self, transactional_id: str, value: Transaction | None) -> None:
        record = TransactionRecord(transactional_id, value)
        self._records.append(record)
        apply(self.tables, record)

    def answer(self, ticket: Ticket, reply: Reply) -> None:
        self.waiting -= 1
        self._answers.append(Answer(ticket, reply))

    def do(self, effect: Effect) -> None:
        self._effects.append(effect)

    # -- deadlines -------------------------------------------------------------------------------------------------

    def start_timer(self, kind: TimerKind, timeout_ms: int, transactional_id: str = "") -> None:
        self.timers.set(TimerName(kind, transactional_id), self.now.elapsed_ms + timeout_ms)

    def stop_timer(self, kind: TimerKind, transactional_id: str = "") -> None:
        self.timers.cancel(TimerName(kind, transactional_id))

    # -- producer ids ----------------------------------------------------------------------------------------------

    def take_producer_id(self, ticket: Ticket, request: Request, transactional_id: str) -> int | None:
        """None: the request waits for one, and is looked at anew when it is there."""
        spare = self._spare_ids.pop(transactional_id, None)
        if spare is not None:
            return spare
        waiting = self._waiting_for_ids.setdefault(transactional_id, [])
        if not waiting:
            self.do(AllocateProducerId(transactional_id))
        waiting.append((ticket, request))
        return None

    def give_producer_id(self, transactional_id: str, producer_id: int) -> None:
        self._spare_ids[transactional_id] = producer_id

    def forget_spare_id(self, transactional_id: str) -> None:
        """Nobody needed it. There are enough of them."""
        self._spare_ids.pop(transactional_id, None)

    def wake_waiting(self, transactional_id: str) -> list[tuple[Ticket, Request]]:
        return self._waiting_for_ids.pop(transactional_id, [])


def apply(tables: Tables, record: TransactionRecord) -> None:
    """The only way in which what survives changes, running and reloading alike."""
    if record.value is None:
        tables.pop(record.transactional_id, None)
    else:
        tables[record.transactional_id] = record.value

"""The state of the coordinator of one partition of `__transaction_state`, and the step it is taking.

A step changes durable state only through `emit`, which applies the record at once and hands it out to be appended. If
an append fails, the whole shard is dropped and another is loaded from the log (ADR 10, ADR 12).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.machines.coordinators import Instant, Ticket
from ottla.machines.transactions.config import TransactionConfig
from ottla.machines.transactions.decisions import Decisions
from ottla.machines.transactions.effects import AllocateProducerId, Effect
from ottla.machines.transactions.records import TopicPartition, Transaction, TransactionRecord
from ottla.machines.transactions.replies import Reply
from ottla.machines.transactions.requests import Request
from ottla.machines.transactions.timers import TimerKind, TimerName, Timers

Tables = dict[str, Transaction]
"""All state that survives a failover, by transactional id."""


class Answer(NamedTuple):
    """A reply, with the ticket of its request."""

    ticket: Ticket
    reply: Reply


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one step. The caller appends `records` as one batch. It sends the answers and starts the effects
    when the high watermark has reached the log end offset of that moment, even if there are no records. It calls `tick`
    at the deadline."""

    records: tuple[TransactionRecord, ...]
    answers: tuple[Answer, ...]
    effects: tuple[Effect, ...]
    deadline_ms: int | None
    """Deadline on the clock of `Instant.elapsed_ms`."""


@dataclass(slots=True)
class MarkerProgress:
    """The partitions of a prepared transaction that have no marker yet."""

    unmarked: set[TopicPartition]
    in_flight: set[TopicPartition] = field(default_factory=set)
    failures: int = 0


class Shard:
    """The coordinator's tables, timers and markers in progress, and the output of the current step."""

    def __init__(self, config: TransactionConfig, tables: Tables, decisions: Decisions) -> None:
        self.config = config
        self.tables = tables
        self.decisions = decisions
        self.coordinator_epoch = -1
        self.timers = Timers()
        self.markers: dict[str, MarkerProgress] = {}
        self.now = Instant(0, 0)
        self.waiting = 0
        """Number of tickets without a reply."""
        self._waiting_for_ids: dict[str, list[tuple[Ticket, Request]]] = {}
        self._spare_ids: dict[str, int] = {}
        self._records: list[TransactionRecord] = []
        self._answers: list[Answer] = []
        self._effects: list[Effect] = []

    # -- a step ----------------------------------------------------------------------------------------------------

    def begin(self, now: Instant) -> None:
        """Starts a step at this time."""
        is_ended = not self._records and not self._answers and not self._effects
        assert is_ended, "one step at a time"
        self.now = now

    def end(self) -> Step:
        """Ends the step and returns its output."""
        step = Step(tuple(self._records), tuple(self._answers), tuple(self._effects), self.timers.next_ms())
        self._records.clear()
        self._answers.clear()
        self._effects.clear()
        return step

    def emit(self, transactional_id: str, value: Transaction | None) -> None:
        """Adds a record to the step and applies it."""
        record = TransactionRecord(transactional_id, value)
        self._records.append(record)
        apply(self.tables, record)

    def answer(self, ticket: Ticket, reply: Reply) -> None:
        """Sends the reply to a ticket, once the records of the current step are committed."""
        self.waiting -= 1
        self._answers.append(Answer(ticket, reply))

    def do(self, effect: Effect) -> None:
        """Requests an effect outside of the machine, once the records of the current step are committed."""
        self._effects.append(effect)

    # -- deadlines -------------------------------------------------------------------------------------------------

    def start_timer(self, kind: TimerKind, timeout_ms: int, transactional_id: str = "") -> None:
        """Starts a timer, or moves it if it runs already."""
        self.timers.set(TimerName(kind, transactional_id), self.now.elapsed_ms + timeout_ms)

    def stop_timer(self, kind: TimerKind, transactional_id: str = "") -> None:
        """Stops a timer, if it runs."""
        self.timers.cancel(TimerName(kind, transactional_id))

    # -- producer ids ----------------------------------------------------------------------------------------------

    def take_producer_id(self, ticket: Ticket, request: Request, transactional_id: str) -> int | None:
        """Returns a producer id. Returns None if there is none: the request then waits for one and is handled again."""
        spare = self._spare_ids.pop(transactional_id, None)
        if spare is not None:
            return spare
        waiting = self._waiting_for_ids.setdefault(transactional_id, [])
        if not waiting:
            self.do(AllocateProducerId(transactional_id))
        waiting.append((ticket, request))
        return None

    def give_producer_id(self, transactional_id: str, producer_id: int) -> None:
        """Stores an allocated producer id until a request takes it."""
        self._spare_ids[transactional_id] = producer_id

    def forget_spare_id(self, transactional_id: str) -> None:
        """Drops an id that no request needed. Ids are plentiful."""
        self._spare_ids.pop(transactional_id, None)

    def wake_waiting(self, transactional_id: str) -> list[tuple[Ticket, Request]]:
        """Returns the requests that wait for a producer id, and removes them."""
        return self._waiting_for_ids.pop(transactional_id, [])


def apply(tables: Tables, record: TransactionRecord) -> None:
    """Applies a record to the tables. This is the only way in which durable state changes, running or loading."""
    if record.value is None:
        tables.pop(record.transactional_id, None)
    else:
        tables[record.transactional_id] = record.value

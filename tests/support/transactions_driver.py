"""A transaction coordinator with a log and a clock, and partitions with their transactions, in isolation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from ottla.machines.coordinators import Instant
from ottla.machines.transactions import encoding
from ottla.machines.transactions.config import TransactionConfig
from ottla.machines.transactions.coordinator import TransactionCoordinator
from ottla.machines.transactions.effects import AllocateProducerId, WriteMarkers
from ottla.machines.transactions.partition_table import AlreadyMarked, Marker, PartitionTransactions
from ottla.machines.transactions.records import TopicPartition, Transaction
from ottla.machines.transactions.replies import Reply
from ottla.machines.transactions.requests import Request
from ottla.machines.transactions.shard import Step
from ottla.protocol.model.errors import ErrorCode, Refused

T = TypeVar("T")

WALL_MS = 1_700_000_000_000
FIRST_PRODUCER_ID = 1000


def partition(name: str) -> TopicPartition:
    topic, _, index = name.rpartition("-")
    return TopicPartition(topic, int(index))


def partitions(names: str) -> frozenset[TopicPartition]:
    return frozenset(partition(name) for name in names.split(",") if name)


@dataclass(frozen=True)
class Batch:
    producer_id: int
    epoch: int
    content: object = None
    is_transactional: bool = True
    timestamp_ms: int = 0


@dataclass(frozen=True)
class Control:
    marker: Marker
    timestamp_ms: int = 0


@dataclass
class PartitionLog:
    """A log in which each entry has one offset. Entries are committed at once unless the high watermark is held."""

    entries: list[Batch | Control] = field(default_factory=list)
    table: PartitionTransactions = field(default_factory=PartitionTransactions)
    is_watermark_held: bool = False
    watermark: int = 0

    @property
    def end(self) -> int:
        return len(self.entries)

    def append(self, entry: Batch | Control) -> int:
        self.entries.append(entry)
        record(self.table, self.end - 1, entry)
        if not self.is_watermark_held:
            self.commit()
        return self.end - 1

    def commit(self, to: int | None = None) -> None:
        self.watermark = self.end if to is None else min(to, self.end)
        self.table.advance_watermark(self.watermark)

    def mark(self, effect: WriteMarkers, timestamp_ms: int = 0) -> ErrorCode:
        marker = Marker(
            effect.producer_id,
            effect.producer_epoch,
            effect.coordinator_epoch,
            effect.is_commit,
            effect.transaction_version,
        )
        verdict = self.table.judge_marker(marker)
        if isinstance(verdict, Refused):
            return verdict.error
        if not isinstance(verdict, AlreadyMarked):
            self.append(Control(marker, timestamp_ms))
        return ErrorCode.none

    def truncate(self, to: int) -> None:
        """Truncates the log, as a new leader with a shorter log does."""
        del self.entries[to:]
        assert self.table.truncate_to(to)

    def replayed(self) -> PartitionTransactions:
        table = PartitionTransactions()
        for offset, entry in enumerate(self.entries):
            record(table, offset, entry)
        return table


def record(table: PartitionTransactions, offset: int, entry: Batch | Control) -> None:
    """Returns the entry as the log stores it: a control batch does not contain a protocol version."""
    if isinstance(entry, Control):
        table.record_marker(entry.marker._replace(transaction_version=0), offset, entry.timestamp_ms)
    else:
        table.record_batch(
            entry.producer_id, entry.epoch, offset, entry.timestamp_ms, is_transactional=entry.is_transactional
        )


class Coordinated:
    """A coordinator whose appends are committed at once; effects wait until a test performs them."""

    def __init__(self, config: TransactionConfig | None = None) -> None:
        self.config = config or TransactionConfig()
        self.log: list[tuple[bytes, bytes | None]] = []
        self.answers: dict[int, Reply] = {}
        self.markers: list[WriteMarkers] = []
        self.has_producer_ids = True
        self.elapsed_ms = 0
        self.deadline_ms: int | None = None
        self.epoch = 0
        self._allocations: list[str] = []
        self._ids = count(FIRST_PRODUCER_ID)
        self._tickets = count(1)
        self.fail_over()

    @property
    def now(self) -> Instant:
        return Instant(self.elapsed_ms, WALL_MS + self.elapsed_ms)

    def transaction(self, transactional_id: str = "a") -> Transaction:
        return self.coordinator.tables[transactional_id]

    def reloaded(self) -> TransactionCoordinator:
        coordinator = TransactionCoordinator(self.config)
        for key, value in self.log:
            coordinator.replay(key, value)
        assert not coordinator.unreadable
        return coordinator

    def fail_over(self) -> None:
        self.coordinator = self.reloaded()
        self.epoch += 1
        self.markers.clear()
        self._allocations.clear()
        self._take(self.coordinator.loaded(self.epoch, self.now))

    def send(self, request: Request) -> int:
        """Sends a command and returns its ticket."""
        ticket = next(self._tickets)
        self._take(self.coordinator.handle(ticket, request, self.now))
        return ticket

    def ask(self, kind: type[T], request: Request) -> T:
        """Sends a command that is answered at once and returns the reply."""
        ticket = self.send(request)
        assert ticket in self.answers, f"{request} has to wait"
        reply = self.answers.pop(ticket)
        assert isinstance(reply, kind)
        return reply

    def wait(self, duration_ms: int) -> None:
        until_ms = self.elapsed_ms + duration_ms
        while self.deadline_ms is not None and self.deadline_ms <= until_ms:
            self.elapsed_ms = max(self.elapsed_ms, self.deadline_ms)
            self._take(self.coordinator.tick(self.now))
        self.elapsed_ms = until_ms

    def allocate(self) -> None:
        """Allocates ids that were requested while none were available."""
        self.has_producer_ids = True
        while self._allocations:
            name = self._allocations.pop(0)
            self._take(self.coordinator.producer_id_allocated(name, next(self._ids), self.now))

    def refuse_ids(self) -> None:
        names, self._allocations = self._allocations, []
        for name in names:
            self._take(self.coordinator.producer_id_refused(name, self.now))

    def report(
        self, effect: WriteMarkers, error: ErrorCode = ErrorCode.none, of: Iterable[TopicPartition] | None = None
    ) -> None:
        results = dict.fromkeys(effect.partitions if of is None else of, error)
        self.report_results(effect, results)

    def report_results(self, effect: WriteMarkers, results: dict[TopicPartition, ErrorCode]) -> None:
        self._take(
            self.coordinator.markers_written(
                effect.transactional_id, effect.producer_id, effect.producer_epoch, results, self.now
            )
        )

    def complete(self) -> None:
        """Writes all markers and completes the transaction."""
        while self.markers:
            self.report(self.markers.pop(0))

    def _take(self, step: Step) -> None:
        for appended in step.records:
            key, value = encoding.encode(appended)
            assert encoding.decode(key, value) == appended
            self.log.append((key, value))
        assert self.reloaded().tables == self.coordinator.tables, "what it knows is what its log says"
        for answer in step.answers:
            assert answer.ticket not in self.answers, "answered twice"
            self.answers[answer.ticket] = answer.reply
        self.deadline_ms = step.deadline_ms
        for effect in step.effects:
            if isinstance(effect, AllocateProducerId):
                self._allocations.append(effect.transactional_id)
            else:
                self.markers.append(effect)
        if self.has_producer_ids and self._allocations:
            self.allocate()

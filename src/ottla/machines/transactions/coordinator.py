"""The transaction coordinator of one partition of `__transaction_state`: requests in; records, replies and effects out
(ADR 12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ottla.machines.coordinators import Instant, Ticket
from ottla.machines.transactions import encoding, init_producer, listing, markers, participation
from ottla.machines.transactions import transaction_end as ending
from ottla.machines.transactions.config import TransactionConfig
from ottla.machines.transactions.decisions import Decisions
from ottla.machines.transactions.records import TopicPartition, TransactionState, Unknown, Unreadable
from ottla.machines.transactions.replies import EndTransactionReply, InitProducerReply
from ottla.machines.transactions.requests import (
    AbortTransaction,
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitProducer,
    ListTransactions,
    Request,
)
from ottla.machines.transactions.shard import Shard, Step, Tables, apply
from ottla.machines.transactions.timers import TimerKind, TimerName
from ottla.protocol.model.errors import ErrorCode
from ottla.reach import branch

_INHERITED = branch("a coordinator finishes a transaction that another one decided", __name__)

UNREADABLE_KEPT = 10
"""Maximum number of messages about unreadable records that are kept for the report."""

_HANDLERS: dict[type[Request], Callable[[Shard, Ticket, Any], None]] = {
    InitProducer: init_producer.init_producer,
    AddPartitions: participation.add_partitions,
    EndTransaction: ending.end_transaction,
    AbortTransaction: ending.abort_by_operator,
    DescribeTransaction: listing.describe_transaction,
    ListTransactions: listing.list_transactions,
}


class TransactionCoordinator:
    """The coordinator of one partition. Call `replay` for the whole log, then `loaded`, then send requests.

    After a failed append or an exception, drop the coordinator and load another one, because this one may know more
    than its log.
    """

    def __init__(self, config: TransactionConfig, decisions: Decisions | None = None) -> None:
        """Counts its decisions in `decisions`, which outlives a dropped coordinator."""
        self.tables: Tables = {}
        self._shard = Shard(config, self.tables, Decisions() if decisions is None else decisions)
        self.skipped: Counter[int] = Counter()
        """Number of records of unknown kinds, by kind."""
        self.unreadable: list[str] = []
        self.refused_markers: Counter[ErrorCode] = Counter()
        """Number of rejected markers, by error, for metrics. TRANSACTION_COORDINATOR_FENCED means that a later
        coordinator exists."""

    # -- loading ---------------------------------------------------------------------------------------------------

    def replay(self, key: bytes | None, value: bytes | None) -> None:
        """Applies one record of the log. Call it for every record, from the beginning of the log."""
        record = Unreadable("a record without a key") if key is None else encoding.decode(key, value)
        if isinstance(record, Unknown):
            self.skipped[record.key_version] += 1
        elif isinstance(record, Unreadable):
            if len(self.unreadable) < UNREADABLE_KEPT:
                self.unreadable.append(record.why)
        else:
            apply(self.tables, record)

    def loaded(self, coordinator_epoch: int, now: Instant) -> Step:
        """Finishes loading. `coordinator_epoch` is the leader epoch of the partition; partitions reject markers of a
        lower one."""
        shard = self._shard
        shard.begin(now)
        shard.coordinator_epoch = coordinator_epoch
        for name, transaction in sorted(self.tables.items()):
            if transaction.state.is_prepared:
                _INHERITED()
                markers.begin(shard, name)
            elif transaction.state is TransactionState.ONGOING:
                ending.watch_timeout(shard, name)
        shard.start_timer(TimerKind.EXPIRATION, shard.config.id_expiration_check_interval_ms)
        return shard.end()

    # -- running ---------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of tickets that have no reply yet."""
        return self._shard.waiting

    def handle(self, ticket: Ticket, request: Request, now: Instant) -> Step:
        """Handles one request. The reply may be part of this step or of a later one."""
        self._shard.begin(now)
        self._shard.waiting += 1
        self._handle(ticket, request)
        return self._shard.end()

    def tick(self, now: Instant) -> Step:
        """Runs the timers that are due."""
        self._shard.begin(now)
        due = []
        while (name := self._shard.timers.pop_due(now.elapsed_ms)) is not None:
            due.append(name)
        for name in due:
            self._on_timer(name)
        return self._shard.end()

    def markers_written(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        results: Mapping[TopicPartition, ErrorCode],
        now: Instant,
    ) -> Step:
        """Reports the outcome of a `WriteMarkers` effect or of a part of it. A partition whose topic was deleted counts
        as written; an unreachable partition has the error of the connection."""
        self._shard.begin(now)
        self.refused_markers.update(error for error in results.values() if error is not ErrorCode.none)
        markers.written(self._shard, transactional_id, (producer_id, producer_epoch), results)
        return self._shard.end()

    def producer_id_allocated(self, transactional_id: str, producer_id: int, now: Instant) -> Step:
        """Reports a new producer id, and resumes the requests that waited for it."""
        shard = self._shard
        shard.begin(now)
        shard.give_producer_id(transactional_id, producer_id)
        for ticket, request in shard.wake_waiting(transactional_id):
            self._handle(ticket, request)
        shard.forget_spare_id(transactional_id)
        return shard.end()

    def producer_id_refused(self, transactional_id: str, now: Instant) -> Step:
        """Reports that no producer id is available, for example while the coordination store does not respond. Clients
        retry."""
        shard = self._shard
        shard.begin(now)
        error = ErrorCode.coordinator_load_in_progress
        for ticket, request in shard.wake_waiting(transactional_id):
            is_init = isinstance(request, InitProducer)
            shard.answer(ticket, InitProducerReply(error) if is_init else EndTransactionReply(error))
        return shard.end()

    def _handle(self, ticket: Ticket, request: Request) -> None:
        _HANDLERS[type(request)](self._shard, ticket, request)

    def _on_timer(self, name: TimerName) -> None:
        match name.kind:
            case TimerKind.TIMEOUT:
                ending.on_timeout(self._shard, name.transactional_id)
            case TimerKind.MARKERS:
                markers.on_retry(self._shard, name.transactional_id)
            case TimerKind.EXPIRATION:
                listing.expire(self._shard)

"""The second phase of ending a transaction: writes the outcome into each partition, then completes the transaction.

The decision is committed before a marker is sent, so that a failover cannot undo what a marker says. The set of marked
partitions is not stored: the next coordinator sends all markers again, and a partition that already has its marker
reports that (`partition_table`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ottla.machines.transactions.effects import WriteMarkers
from ottla.machines.transactions.records import (
    EPOCH_BUMPS_SINCE_VERSION,
    NO_PARTITIONS,
    NO_PRODUCER_ID,
    TopicPartition,
    Transaction,
    TransactionState,
)
from ottla.machines.transactions.shard import MarkerProgress, Shard
from ottla.machines.transactions.timers import TimerKind
from ottla.protocol.model.errors import ErrorCode
from ottla.reach import branch

_RETRIED = branch("markers are sent again", __name__)

MARKED = frozenset(
    {
        ErrorCode.none,
        # The partition knows a later epoch of this producer. No producer gets one before this transaction is complete,
        # so the marker was written before, or no record of the transaction is left.
        ErrorCode.invalid_producer_epoch,
        # Such a log cannot contain transactional records.
        ErrorCode.unsupported_for_message_format,
    }
)
"""Results that leave nothing to do for the partition. Every other error is retried: a decided transaction is never
abandoned."""

BACKOFF_DOUBLINGS_MAX = 10


def begin(shard: Shard, transactional_id: str) -> None:
    """Starts writing the markers of a prepared transaction."""
    partitions = shard.tables[transactional_id].partitions
    if partitions:
        shard.markers[transactional_id] = MarkerProgress(set(partitions))
        _send(shard, transactional_id)
    else:
        _complete(shard, transactional_id)


def written(
    shard: Shard,
    transactional_id: str,
    producer: tuple[int, int],
    results: Mapping[TopicPartition, ErrorCode],
) -> None:
    """Handles the results of markers that were sent. Results for a transaction that is over change nothing."""
    progress = shard.markers.get(transactional_id)
    transaction = shard.tables.get(transactional_id)
    if progress is None or transaction is None:
        return
    if producer != (transaction.producer_id, transaction.producer_epoch):
        return
    progress.in_flight -= results.keys()
    progress.unmarked -= {partition for partition, error in results.items() if error in MARKED}
    if not progress.unmarked:
        del shard.markers[transactional_id]
        shard.stop_timer(TimerKind.MARKERS, transactional_id)
        _complete(shard, transactional_id)
    elif progress.unmarked - progress.in_flight:
        _retry_later(shard, transactional_id, progress)


def on_retry(shard: Shard, transactional_id: str) -> None:
    """Sends the outstanding markers again."""
    if transactional_id in shard.markers:
        _RETRIED()
        _send(shard, transactional_id)


def _retry_later(shard: Shard, transactional_id: str, progress: MarkerProgress) -> None:
    backoff_ms = shard.config.marker_backoff_min_ms << min(progress.failures, BACKOFF_DOUBLINGS_MAX)
    progress.failures += 1
    shard.start_timer(TimerKind.MARKERS, min(backoff_ms, shard.config.marker_backoff_max_ms), transactional_id)


def _send(shard: Shard, transactional_id: str) -> None:
    transaction, progress = shard.tables[transactional_id], shard.markers[transactional_id]
    partitions = frozenset(progress.unmarked - progress.in_flight)
    progress.in_flight |= partitions
    shard.do(
        WriteMarkers(
            transactional_id,
            transaction.producer_id,
            transaction.producer_epoch,
            shard.coordinator_epoch,
            transaction.state.is_commit,
            min(transaction.client_version, EPOCH_BUMPS_SINCE_VERSION),
            partitions,
        )
    )


def _complete(shard: Shard, transactional_id: str) -> None:
    transaction = shard.tables[transactional_id]
    is_commit = transaction.state.is_commit
    completed = replace(
        transaction,
        state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        partitions=NO_PARTITIONS,
        updated_ms=shard.now.wall_ms,
        previous_producer_id=transaction.producer_id,
    )
    shard.emit(transactional_id, _with_next_id(completed))


def _with_next_id(transaction: Transaction) -> Transaction:
    if transaction.next_producer_id == NO_PRODUCER_ID:
        return transaction
    return replace(
        transaction, producer_id=transaction.next_producer_id, producer_epoch=0, next_producer_id=NO_PRODUCER_ID
    )

"""Validates a batch before the leader appends it: the producer's sequence and the state of its transaction.

The first batch of a transaction in a partition is appended only after the transaction coordinator has confirmed that
the transaction is ongoing (KIP-890). The caller takes a guard before it asks the coordinator and presents it with the
batch. A marker that arrives in between invalidates the guard.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.partition.refused_batches import RefusedBatches
from ottla.broker.storage.any_log import AnyLog
from ottla.machines.producers import Duplicate, OutOfOrder, ProducerBatch, StaleEpoch, Verdict
from ottla.machines.transactions.verification import NO_GUARD
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.writer_ids import WRITER_IDS_FROM
from ottla.protocol.records.batch import BatchHeader, read_header
from ottla.protocol.records.produce_run import ProduceRun


class Appended(NamedTuple):
    """The offsets of an appended batch. It is acknowledged when the high watermark reaches `end_offset`."""

    base_offset: int
    end_offset: int
    log_append_time_ms: int
    log_start_offset: int


class BatchOrigin(NamedTuple):
    """The origin of a batch: the guard and version of its transaction, or a writer of the append stream."""

    guard: int = NO_GUARD
    transaction_version: int = 0
    is_writer: bool = False
    """The batch comes from the append stream, which has already validated it by its own rules."""


UNGUARDED = BatchOrigin()
AS_WRITER = BatchOrigin(is_writer=True)


def judge(
    log: AnyLog,
    header: BatchHeader,
    refused: RefusedBatches,
    now_ms: int,
    guarded: BatchOrigin = UNGUARDED,
) -> Appended | Refused | None:
    """Returns None if the batch is to be appended, or else the reply to it. A retry of a batch that is in the log waits
    for the same acknowledgement as the original (safety: duplicates)."""
    if guarded.is_writer:
        return None
    if header.producer_id >= WRITER_IDS_FROM:
        return Refused(
            ErrorCode.invalid_record, "producer ids from 2^62 on are reserved for writers of the append stream"
        )
    verdict = log.producers.judge(header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence)
    if isinstance(verdict, Duplicate):
        batch = verdict.batch
        append_time = batch.timestamp_ms if header.is_log_append_time else -1
        return Appended(batch.base_offset, batch.end_offset, append_time, log.start_offset)
    if refused and (waits := _waits_for_refused(log, header, verdict, refused, now_ms)) is not None:
        return waits
    if isinstance(verdict, OutOfOrder):
        return Refused(
            ErrorCode.out_of_order_sequence_number,
            f"producer {header.producer_id} sent sequence {header.base_sequence}, expected {verdict.expected_sequence}",
        )
    if isinstance(verdict, StaleEpoch):
        return Refused(
            ErrorCode.invalid_producer_epoch,
            f"producer {header.producer_id} has epoch {verdict.current_epoch}, not {header.producer_epoch}",
        )
    if not header.is_transactional and log.transactions.get(header.producer_id) is None:
        return None
    return log.transactions.judge_batch(
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        is_transactional=header.is_transactional,
        guard=guarded.guard,
        transaction_version=guarded.transaction_version,
    )


def record_sequences(log: AnyLog, run: ProduceRun, refused: RefusedBatches, now_ms: int) -> bool:
    """Records producer sequences and cuts the run before the first batch that does not continue its producer's
    sequence. Returns False if nothing is left. The caller appends the recorded batches atomically on the event loop."""
    producers, base_offset = log.producers, log.end_offset
    for place, batch in enumerate(run.batches):
        header = read_header(batch)
        end_offset = base_offset + header.record_count
        if header.producer_id >= 0:
            if judge(log, header, refused, now_ms) is not None:
                run.cut(place)
                return place > 0
            noted = ProducerBatch(
                header.base_sequence, header.last_sequence, base_offset, end_offset, header.max_timestamp
            )
            producers.record(header.producer_id, header.producer_epoch, noted)
        base_offset = end_offset
    return True


def _waits_for_refused(
    log: AnyLog, header: BatchHeader, verdict: Verdict, refused: RefusedBatches, now_ms: int
) -> Refused | None:
    """Returns the refusal of an earlier batch that this one has to wait for. The log's own state of a producer takes
    precedence over a remembered refusal: another broker may have accepted the refused batch since."""
    missing = verdict.expected_sequence if isinstance(verdict, OutOfOrder) else None
    if missing is None and log.producers.get(header.producer_id) is not None:
        return None
    return refused.before(header, missing, now_ms)


def guard_for(log: AnyLog, header: BatchHeader, now_ms: int) -> int | Refused:
    """Returns the guard to present with a transactional batch once the coordinator has been asked. NO_GUARD means that
    it need not be asked: the transaction is open here, or the batch is a retry or will be refused in any case."""
    verdict = log.producers.judge(header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence)
    if isinstance(verdict, Duplicate | StaleEpoch):
        return NO_GUARD
    guard = log.transactions.begin_verification(header.producer_id, header.producer_epoch, header.base_sequence, now_ms)
    return Refused(guard, "the producer has a newer epoch") if isinstance(guard, ErrorCode) else guard


__all__ = ["AS_WRITER", "NO_GUARD", "UNGUARDED", "Appended", "BatchOrigin", "guard_for", "judge", "record_sequences"]

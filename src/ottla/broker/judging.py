"""What a leader says to a batch before it appends it: by its producer's sequence, and by what transactions are open.

The first batch of a transaction in a partition is appended only if the transaction's coordinator has said that it goes
on (KIP-890). Whoever asks the coordinator takes a guard before, and shows it with the batch: a marker that comes
meanwhile takes the guard away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.refused_batches import RefusedBatches
from ottla.machines.producers import Duplicate, OutOfOrder, StaleEpoch, Verdict
from ottla.machines.transactions.verification import NO_GUARD
from ottla.model.errors import ErrorCode, Refused
from ottla.model.writer_ids import WRITER_IDS_FROM
from ottla.records.batch import BatchHeader

if TYPE_CHECKING:
    from ottla.log.file_log import FileLog
    from ottla.log.memory_log import MemoryLog


class Appended(NamedTuple):
    """A batch has its place; it is acknowledged when the watermark reaches `end_offset`."""

    base_offset: int
    end_offset: int
    log_append_time_ms: int
    log_start_offset: int


class Guarded(NamedTuple):
    """How a transactional batch comes."""

    guard: int = NO_GUARD
    transaction_version: int = 0
    is_writer: bool = False
    """By the append stream, which has judged it by its own rules."""


UNGUARDED = Guarded()
AS_WRITER = Guarded(is_writer=True)


def judge(
    log: FileLog | MemoryLog, header: BatchHeader, refused: RefusedBatches, now_ms: int, guarded: Guarded = UNGUARDED
) -> Appended | Refused | None:
    """None: append it. A retry of what is in the log waits for what the original waits for (SAFETY 21)."""
    if guarded.is_writer:
        return None
    if header.producer_id >= WRITER_IDS_FROM:
        return Refused(ErrorCode.invalid_record, "producer ids from 2^62 on are for writers of the append stream")
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


def _waits_for_refused(
    log: FileLog | MemoryLog, header: BatchHeader, verdict: Verdict, refused: RefusedBatches, now_ms: int
) -> Refused | None:
    """What the log knows of a producer counts more than a refusal that another broker may have made good."""
    missing = verdict.expected_sequence if isinstance(verdict, OutOfOrder) else None
    if missing is None and log.producers.get(header.producer_id) is not None:
        return None
    return refused.before(header, missing, now_ms)


def guard_for(log: FileLog | MemoryLog, header: BatchHeader, now_ms: int) -> int | Refused:
    """What to show with a transactional batch, after the coordinator was asked. NO_GUARD: it need not be asked, because
    the transaction is open here, or because the batch is a retry or will be refused in any case."""
    verdict = log.producers.judge(header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence)
    if isinstance(verdict, Duplicate | StaleEpoch):
        return NO_GUARD
    guard = log.transactions.begin_verification(header.producer_id, header.producer_epoch, header.base_sequence, now_ms)
    return Refused(guard, "a later epoch of the producer asks") if isinstance(guard, ErrorCode) else guard


__all__ = ["AS_WRITER", "NO_GUARD", "UNGUARDED", "Appended", "Guarded", "guard_for", "judge"]

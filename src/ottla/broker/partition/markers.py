"""Appends transaction markers to a partition, each exactly once.

A marker is acknowledged like a batch with acks=all. A marker that is already in the log is not written again; the reply
waits for the existing one to be acknowledged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.partition.batch_validation import Appended
from ottla.machines.transactions.partition_table import AlreadyMarked, Marker
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.records.batch import read_header, stamp, stamped
from ottla.protocol.records.control import ControlKind, end_transaction_batch
from ottla.reach import branch

if TYPE_CHECKING:
    from ottla.broker.partition.partition import Partition
    from ottla.broker.partition.waits import Settled

_AGAIN = branch("a marker that is in the log arrives again", __name__)
_REFUSED = branch("a marker of an earlier coordinator or producer is refused", __name__)

ALL = -1


def append_marker(partition: Partition, marker: Marker, now_ms: int) -> Appended | Refused:
    """Appends a marker without waiting. It is acknowledged when the high watermark reaches `end_offset`."""
    refused = partition.refusal_for(ALL)
    if refused is not None:
        return refused
    log = partition.log
    verdict = log.transactions.judge_marker(marker)
    if isinstance(verdict, Refused):
        _REFUSED()
        return verdict
    if isinstance(verdict, AlreadyMarked):
        _AGAIN()
        return Appended(verdict.offset, verdict.offset + 1, -1, log.start_offset)
    batch = memoryview(_batch_of(marker, now_ms))
    header = read_header(batch)
    refused = log.refusal(len(batch), header.record_count)
    if refused is not None:
        return refused
    base_offset = log.end_offset
    stamp(batch, base_offset, partition.leader_epoch)
    log.append(stamped(header, base_offset, partition.leader_epoch), batch)
    if partition.on_marker is not None:
        partition.on_marker(marker)
    partition.on_appended()
    return Appended(base_offset, log.end_offset, -1, log.start_offset)


def write_marker(partition: Partition, marker: Marker, now_ms: int, settled: Settled) -> None:
    """Appends a marker and calls `settled` when it is acknowledged, or with the error."""
    outcome = append_marker(partition, marker, now_ms)
    if isinstance(outcome, Refused):
        settled(outcome.error)
    elif outcome.end_offset <= partition.high_watermark:
        settled(ErrorCode.none)
    else:
        partition.when_acknowledged(outcome.end_offset, settled, ALL)


def _batch_of(marker: Marker, now_ms: int) -> bytearray:
    return end_transaction_batch(
        ControlKind.commit if marker.is_commit else ControlKind.abort,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp_ms=now_ms,
    )

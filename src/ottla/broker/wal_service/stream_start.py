"""Begins a stream: who writes, whether it may write, and which of its records are already in the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.partition.writers import batches_of, committed, last_id_of
from ottla.broker.wal_service.logs import Logs, refusal_failure
from ottla.machines.writers.resumption import NO_ID, LoggedIds, RejectedIds, account_for
from ottla.machines.writers.rules import UnknownEpoch, judge_epoch
from ottla.protocol.model.acl import Operation
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.writer_ids import NO_EPOCH, WRITER_IDS_FROM, producer_id_of
from ottla.protocol.wire.wal_append import Acks, Begin, Code, WalFailure
from ottla.protocol.wire.wal_calls import LogName

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.broker.partition.partition import Partition


class StreamStart(NamedTuple):
    """The state with which a stream begins."""

    partition: Partition
    writer_id: int
    epoch: int
    next_id: int
    """The next record has this id or a higher one."""
    accounts: list[LoggedIds | RejectedIds]
    may_be_trimmed: bool = False
    """True if missing records may have been in the log and been trimmed."""
    fenced: WalFailure | None = None
    """Set if the writer is fenced: it is told which of its records are in the log, and can write nothing more."""


async def begin(
    broker: Broker, logs: Logs, request: Begin, on_accepted: Callable[[Partition, int], None]
) -> StreamStart | WalFailure:
    """Checks a Begin request and finds out which of the writer's records are in the log.

    `on_accepted` is called with the partition and the writer's id before that search. It ends an earlier stream of the
    writer.
    """
    log = LogName(request.topic, request.partition)
    partition = logs.led(log, Operation.WRITE)
    if isinstance(partition, WalFailure):
        return partition
    writer_id = await _writer_id(broker, request)
    if isinstance(writer_id, WalFailure):
        return writer_id
    if not partition.is_led_here:
        return logs.not_led(log)
    refusal = judge_epoch(request.epoch, partition.log.producers.writer_epoch)
    if isinstance(refusal, UnknownEpoch):
        error = await committed(partition, partition.log.end_offset)
        return refusal_failure(refusal) if error is ErrorCode.none else logs.failure(log, error)
    fenced = refusal_failure(refusal) if refusal is not None else None
    # From here on no earlier stream of this writer appends anything, so the log's records of this writer are final.
    on_accepted(partition, writer_id)
    settled_id = NO_ID if request.settled_id is None else request.settled_id
    if request.epoch == NO_EPOCH and request.writer_id is None:  # new in this log, whatever it did elsewhere
        return StreamStart(partition, writer_id, NO_EPOCH, settled_id + 1, [], fenced=fenced)
    known = partition.log.producers.get(writer_id)
    if known is None and fenced is not None:
        return WalFailure(Code.UNKNOWN_WRITER, f"{fenced.message}, and what an earlier one wrote is not known any more")
    last_id = last_id_of(known, settled_id)
    if last_id < settled_id:
        if request.acks is Acks.ALL or known is None:
            return WalFailure(Code.UNKNOWN_WRITER, "the log has no state of this writer")
        last_id = settled_id  # acknowledged with less than acks=all, and lost
    start = partition.log.start_offset
    batches = await batches_of(partition, writer_id, settled_id, max(request.from_offset, start))
    if batches is None or not partition.is_led_here:
        return logs.not_led(log)
    accounts = account_for(settled_id, last_id, batches)
    may_be_trimmed = request.from_offset < start
    return StreamStart(partition, writer_id, request.epoch, last_id + 1, accounts, may_be_trimmed, fenced)


async def _writer_id(broker: Broker, request: Begin) -> int | WalFailure:
    if request.epoch != NO_EPOCH:
        return producer_id_of(request.epoch)
    if request.writer_id is not None:
        if 0 <= request.writer_id < WRITER_IDS_FROM:
            return request.writer_id
        return WalFailure(Code.INVALID, "a writer id must come from an earlier stream")
    allocated = await broker.producer_ids.allocate()
    if isinstance(allocated, Refused):
        return WalFailure(Code.UNAVAILABLE, allocated.message or allocated.error.name)
    return allocated

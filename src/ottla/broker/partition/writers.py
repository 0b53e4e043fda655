"""Writers of the append stream in one partition: their batches, their fences, and a lookup of their batches in the log.

There is one write path: a writer's batch is appended, replicated and acknowledged like any other (`Partition.append`).
Only the rules about who may append differ; `machines/writers` decides those.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.blocking_jobs import resolve
from ottla.broker.partition.batch_validation import AS_WRITER, Appended
from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead
from ottla.machines.producers import NO_SEQUENCE, ProducerEntry
from ottla.machines.writers.resumption import NO_ID, LoggedIds, id_of
from ottla.machines.writers.rules import Fenced, judge_fence
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.writer_ids import next_epoch, producer_id_of
from ottla.protocol.records.batch import read_header, split_batches, stamp, stamped
from ottla.protocol.records.control import writer_fence_batch
from ottla.reach import branch

if TYPE_CHECKING:
    from ottla.broker.partition.partition import Partition

_WALKS = branch("the batches of a writer are looked up in the log", __name__)

ALL = -1
WALK_BYTES = 1 << 20


class FenceAppended(NamedTuple):
    """The epoch and offsets of an appended fence. It is in force when the high watermark reaches `end_offset`."""

    epoch: int
    offset: int
    end_offset: int


def time_of_append(partition: Partition, now_ms: int) -> int:
    """Returns the timestamp for a record that is written now. Brokers' clocks differ and are adjusted, but in a
    write-ahead log timestamps never decrease, so that the state as of a time is the log up to one offset."""
    return max(now_ms, partition.log.newest_ms)


def append_as_writer(partition: Partition, batch: bytearray, time_ms: int) -> Appended | Refused:
    """Appends a writer's batch without waiting. The caller has validated it, atomically on the event loop."""
    return partition.append(memoryview(batch), time_ms, AS_WRITER)


def append_fence(partition: Partition, expected_epoch: int | None, now_ms: int) -> FenceAppended | Fenced | Refused:
    """Appends a fence without waiting. Earlier writers are refused from this point of the log on."""
    log = partition.log
    if partition.topic.internal or "compact" in log.config.cleanup_policy:
        return Refused(ErrorCode.policy_violation, "internal and compacted topics do not support a single writer")
    refused = partition.refusal_for(ALL)
    if refused is not None:
        return refused
    fenced = judge_fence(log.producers.writer_epoch, expected_epoch)
    if fenced is not None:
        return fenced
    epoch = next_epoch(partition.leader_epoch, log.producers.writer_epoch)
    if epoch is None:
        return Refused(
            ErrorCode.policy_violation, "the writer epochs of this leader epoch are used up; elect another leader"
        )
    batch = memoryview(writer_fence_batch(producer_id_of(epoch), time_of_append(partition, now_ms)))
    header = read_header(batch)
    refused = log.refusal(len(batch), header.record_count)
    if refused is not None:
        return refused
    offset = log.end_offset
    stamp(batch, offset, partition.leader_epoch)
    log.append(stamped(header, offset, partition.leader_epoch), batch)
    partition.on_appended()
    return FenceAppended(epoch, offset, log.end_offset)


async def committed(partition: Partition, end_offset: int) -> ErrorCode:
    """Waits until everything below the offset is committed. An error means that the outcome is not known yet."""
    if end_offset <= partition.high_watermark:
        return ErrorCode.none
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    partition.when_acknowledged(end_offset, lambda error: resolve(done, error), ALL)
    return await done


def last_id_of(entry: ProducerEntry | None, settled_id: int) -> int:
    """Returns the last id of a writer in the log, or NO_ID if it has none."""
    last = entry.batches[-1].last_sequence if entry is not None and entry.batches else NO_SEQUENCE
    return NO_ID if last == NO_SEQUENCE else id_of(last, settled_id)


async def batches_of(
    partition: Partition, producer_id: int, settled_id: int, from_offset: int
) -> list[LoggedIds] | None:
    """Returns the offsets of a writer's ids above the settled one, or None if this broker no longer leads the
    partition.

    The log remembers a writer's last few batches. If they do not reach back far enough, the batch headers are scanned
    from `from_offset`.
    """
    entry = partition.log.producers.get(producer_id)
    if entry is None:
        return []
    numbered = [batch for batch in entry.batches if batch.last_sequence != NO_SEQUENCE]
    known = [
        LoggedIds(id_of(batch.first_sequence, settled_id), batch.end_offset - batch.base_offset, batch.base_offset)
        for batch in numbered
    ]
    if not known or known[0].first_id <= settled_id + 1 or len(numbered) < len(entry.batches):
        return known
    return await _walk(partition, producer_id, settled_id, from_offset, known[-1].end_offset)


async def _walk(
    partition: Partition, producer_id: int, settled_id: int, offset: int, end_offset: int
) -> list[LoggedIds] | None:
    _WALKS()
    found: list[LoggedIds] = []
    epoch, cuts = partition.leader_epoch, partition.cuts
    while offset < end_offset:
        offset = max(offset, partition.log.start_offset)
        outcome = partition.read_as_follower(offset, WALK_BYTES)
        if isinstance(outcome, ColdRead):
            outcome = await partition.read_cold(outcome)
        if partition.leader_epoch != epoch or partition.cuts != cuts or not partition.is_led_here:
            return None
        if isinstance(outcome, Refused) or not outcome.buffers:
            break
        found += _placed_in(outcome, producer_id, settled_id)
        offset = outcome.next_offset
        await asyncio.sleep(0)  # a long scan yields to the event loop between reads
    return found


def _placed_in(read: Slice, producer_id: int, settled_id: int) -> list[LoggedIds]:
    return [
        LoggedIds(id_of(header.base_sequence, settled_id), header.record_count, header.base_offset)
        for buffer in read.buffers
        for header, _ in split_batches(buffer)
        if header.producer_id == producer_id and header.base_sequence >= 0
    ]

"""Writers of the append stream in one partition: their batches, their fences, and what of theirs is in the log.

One write path: a writer's batch is appended, replicated and acknowledged like any other (`Partition.append`). What is
special is who may append, which `machines/writers` decides.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.blocking import resolve
from ottla.broker.judging import AS_WRITER, Appended
from ottla.log.batches import Slice
from ottla.log.contract import ColdRead
from ottla.machines.producers import NO_SEQUENCE, ProducerEntry
from ottla.machines.writers.resuming import NO_ID, Placed, id_of
from ottla.machines.writers.rules import Fenced, judge_fence
from ottla.model.errors import ErrorCode, Refused
from ottla.model.writer_ids import next_epoch, producer_id_of
from ottla.records.batch import read_header, split_batches, stamp, stamped
from ottla.records.control import writer_fence_batch

if TYPE_CHECKING:
    from ottla.broker.partition import Partition

ALL = -1
WALK_BYTES = 1 << 20


class FenceAppended(NamedTuple):
    """It counts when the watermark has come to `end_offset`."""

    epoch: int
    offset: int
    end_offset: int


def time_of_append(partition: Partition, now_ms: int) -> int:
    """The time of a record to be written now. Clocks of brokers differ, and clocks are set: in a write-ahead log times
    never go back, so that its state as of a time is all of it up to an offset."""
    return max(now_ms, partition.log.newest_ms)


def append_as_writer(partition: Partition, batch: bytearray, time_ms: int) -> Appended | Refused:
    """The caller has judged it, in the same breath. Does not wait."""
    return partition.append(memoryview(batch), time_ms, AS_WRITER)


def append_fence(partition: Partition, expected_epoch: int | None, now_ms: int) -> FenceAppended | Fenced | Refused:
    """From here on in the log, earlier writers are refused. Does not wait."""
    log = partition.log
    if partition.topic.internal or "compact" in log.config.cleanup_policy:
        return Refused(ErrorCode.policy_violation, "internal and compacted topics have no single writer")
    refused = partition.refusal_for(ALL)
    if refused is not None:
        return refused
    fenced = judge_fence(log.producers.writer_epoch, expected_epoch)
    if fenced is not None:
        return fenced
    epoch = next_epoch(partition.leader_epoch, log.producers.writer_epoch)
    if epoch is None:
        return Refused(ErrorCode.policy_violation, "this leader epoch has no more writer epochs: elect another leader")
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
    """Waits until all below the offset is committed. An error: nobody knows yet whether it will be."""
    if end_offset <= partition.high_watermark:
        return ErrorCode.none
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    partition.when_acknowledged(end_offset, lambda error: resolve(done, error), ALL)
    return await done


def last_id_of(entry: ProducerEntry | None, settled_id: int) -> int:
    """The last id that the log has of a writer, NO_ID if it has none."""
    last = entry.batches[-1].last_sequence if entry is not None and entry.batches else NO_SEQUENCE
    return NO_ID if last == NO_SEQUENCE else id_of(last, settled_id)


async def batches_of(partition: Partition, producer_id: int, settled_id: int, from_offset: int) -> list[Placed] | None:
    """Where a writer's ids above the settled one are. None if this broker does not lead any more.

    The log remembers its last few batches. If that is not enough, their headers are looked for from an offset on.
    """
    entry = partition.log.producers.get(producer_id)
    if entry is None:
        return []
    numbered = [batch for batch in entry.batches if batch.last_sequence != NO_SEQUENCE]
    known = [
        Placed(id_of(batch.first_sequence, settled_id), batch.end_offset - batch.base_offset, batch.base_offset)
        for batch in numbered
    ]
    if not known or known[0].first_id <= settled_id + 1 or len(numbered) < len(entry.batches):
        return known
    return await _walk(partition, producer_id, settled_id, from_offset, known[-1].end_offset)


async def _walk(
    partition: Partition, producer_id: int, settled_id: int, offset: int, end_offset: int
) -> list[Placed] | None:
    found: list[Placed] = []
    epoch, cuts = partition.leader_epoch, partition.cuts
    while offset < end_offset:
        offset = max(offset, partition.log_start_offset)
        outcome = partition.read_as_follower(offset, WALK_BYTES)
        if isinstance(outcome, ColdRead):
            outcome = await partition.read_cold(outcome)
        if partition.leader_epoch != epoch or partition.cuts != cuts or not partition.is_led_here:
            return None
        if isinstance(outcome, Refused) or not outcome.buffers:
            break
        found += _placed_in(outcome, producer_id, settled_id)
        offset = outcome.next_offset
        await asyncio.sleep(0)  # a long walk is shared out over the loop's turns
    return found


def _placed_in(read: Slice, producer_id: int, settled_id: int) -> list[Placed]:
    return [
        Placed(id_of(header.base_sequence, settled_id), header.record_count, header.base_offset)
        for buffer in read.buffers
        for header, _ in split_batches(buffer)
        if header.producer_id == producer_id and header.base_sequence >= 0
    ]

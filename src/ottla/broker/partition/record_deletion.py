"""DeleteRecords in a cluster: the new log start takes effect when every in-sync replica has it.

Otherwise the next leader could start at the old offset and serve records that were reported as deleted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.broker.blocking_jobs import resolve
from ottla.broker.clock_sleep import sleep
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.reach import branch

if TYPE_CHECKING:
    from ottla.broker.partition.partition import Partition
    from ottla.machines.replication import LeaderReplication
    from ottla.ports import Clock

_DELETED = branch("DeleteRecords moves the log start", __name__)
_DELETE_WAITS = branch("DeleteRecords waits for a replica", __name__)

LOOK_MS = 10.0


async def delete_records(partition: Partition, offset: int, clock: Clock, timeout_ms: float) -> int | Refused:
    """Advances the log start to `offset`, or to the high watermark if it is -1, and returns the new log start."""
    if partition.leading is None:
        return await advance_log_start(partition, offset)
    epoch = partition.leader_epoch
    deadline_ms = clock.monotonic_ms() + timeout_ms
    target: int | None = None
    while (leading := _leading(partition, epoch)) is not None:
        if target is None and partition.is_watermark_known:
            outcome = await advance_log_start(partition, offset)
            if isinstance(outcome, Refused):
                return outcome
            target = outcome
        elif target is not None and _all_begin_at(leading, target):
            _DELETED()
            return target
        elif clock.monotonic_ms() >= deadline_ms:
            return Refused(ErrorCode.request_timed_out, "not all in-sync replicas have the new log start offset yet")
        else:
            _DELETE_WAITS()
            partition.on_watermark()  # pending fetches carry the new log start
            await sleep(clock, LOOK_MS)
    return Refused(ErrorCode.not_leader_or_follower)


async def advance_log_start(partition: Partition, offset: int) -> int | Refused:
    """Advances the start of the local log to `offset`, or to the high watermark if it is -1, and returns the new log
    start."""
    target = partition.high_watermark if offset == -1 else offset
    if target < 0 or target > partition.high_watermark:
        return Refused(ErrorCode.offset_out_of_range, f"the log ends at {partition.high_watermark}")
    done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    partition.log.advance_start(target, lambda error: resolve(done, error))
    error = await done
    if error is not None:
        return Refused(ErrorCode.kafka_storage_error, str(error))
    return partition.log.start_offset


def _leading(partition: Partition, epoch: int) -> LeaderReplication | None:
    return partition.leading if partition.leader_epoch == epoch else None


def _all_begin_at(leading: LeaderReplication, start: int) -> bool:
    followers = [leading.follower(member) for member in leading.isr]
    return all(follower.start >= start for follower in followers if follower is not None)

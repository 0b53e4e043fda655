"""DeleteRecords in a cluster: the new log start takes effect when every in-sync replica has it.

Otherwise the next leader could start at the old offset and serve records that were reported as deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.cluster.clock_sleep import sleep
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
        return await partition.delete_records(offset)
    epoch = partition.leader_epoch
    deadline_ms = clock.monotonic_ms() + timeout_ms
    target: int | None = None
    while (leading := _leading(partition, epoch)) is not None:
        if target is None and partition.is_watermark_known:
            outcome = await partition.delete_records(offset)
            if isinstance(outcome, Refused):
                return outcome
            target = outcome
        elif target is not None and _all_begin_at(leading, target):
            _DELETED()
            return target
        elif clock.monotonic_ms() >= deadline_ms:
            return Refused(ErrorCode.request_timed_out, "not every replica in sync has the new start of the log yet")
        else:
            _DELETE_WAITS()
            partition.on_watermark()  # pending fetches carry the new log start
            await sleep(clock, LOOK_MS)
    return Refused(ErrorCode.not_leader_or_follower)


def _leading(partition: Partition, epoch: int) -> LeaderReplication | None:
    return partition.leading if partition.leader_epoch == epoch else None


def _all_begin_at(leading: LeaderReplication, start: int) -> bool:
    followers = [leading.follower(member) for member in leading.isr]
    return all(follower.start >= start for follower in followers if follower is not None)

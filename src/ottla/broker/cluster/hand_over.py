"""Hands over leadership before a controlled shutdown."""

from __future__ import annotations

import asyncio
import contextlib

from ottla.broker.clock_sleep import sleep
from ottla.broker.cluster.commits import commit
from ottla.broker.cluster.membership import Membership
from ottla.broker.context import BrokerContext
from ottla.broker.partition.partition import Partition
from ottla.coordination.port import OutcomeUnknownError, UnavailableError
from ottla.machines.controller.broker_requests import is_drained, start_draining
from ottla.machines.controller.writes import Write
from ottla.reach import branch

_HANDED_OVER = branch("leadership is handed over before a stop", __name__)

HAND_OVER_S = 10.0
HAND_OVER_CHECK_MS = 20.0
WATERMARK_S = 2.0


async def hand_over(context: BrokerContext, membership: Membership) -> None:
    """Asks the controller to elect other leaders and waits for it, up to a limit."""
    write = start_draining(membership.image, context.node_id)
    if not isinstance(write, Write):
        return
    with contextlib.suppress(UnavailableError, OutcomeUnknownError, TimeoutError):
        await commit(membership.store, write)
        async with asyncio.timeout(HAND_OVER_S):
            while not is_drained(membership.image, context.node_id):
                await sleep(context.clock, HAND_OVER_CHECK_MS)
        _HANDED_OVER()
        async with asyncio.timeout(WATERMARK_S):
            await _watermarks_known(context)


async def _watermarks_known(context: BrokerContext) -> None:
    """Waits until the new leaders know the high watermarks. A new leader may know a lower watermark than was
    acknowledged here. It learns the rest from this broker as its follower; with too few replicas in sync, it could not
    on its own."""
    ends = {each: each.log.end_offset for each in context.partitions() if context.node_id in each.placement.isr}
    while any(_lacks_watermark(partition, end) for partition, end in ends.items()):
        await sleep(context.clock, HAND_OVER_CHECK_MS)


def _lacks_watermark(partition: Partition, end: int) -> bool:
    following = partition.following
    return following is not None and following.leader_watermark < min(end, partition.log.end_offset)

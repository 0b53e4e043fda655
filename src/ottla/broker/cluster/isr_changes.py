"""Writes ISR changes to the coordination store (safety: isr-changes)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.broker.clock_sleep import sleep
from ottla.broker.cluster.commits import commit
from ottla.coordination.port import OutcomeUnknownError, Revision, UnavailableError
from ottla.machines.controller.isr import isr_change
from ottla.machines.controller.rules import RuleBook
from ottla.machines.controller.state import PartitionKey, PartitionState
from ottla.machines.controller.writes import Write
from ottla.machines.replication import LeaderReplication
from ottla.ports import Clock
from ottla.protocol.model.errors import Refused
from ottla.reach import branch

if TYPE_CHECKING:
    from ottla.broker.cluster.membership import Membership
    from ottla.broker.partition.partition import Partition

_SENT = branch("an ISR change is sent", __name__)
_UNKNOWN = branch("the outcome of an ISR change is unknown", __name__)
_CONFLICT = branch("an ISR change conflicts", __name__)

log = logging.getLogger("ottla.replication")

RETRY_MS = 200.0


class IsrChanges:
    """The pending ISR changes of a leader."""

    def __init__(self, membership: Membership, clock: Clock, rules: RuleBook) -> None:
        self._membership = membership
        self._clock = clock
        self._rules = rules
        self._tasks: set[asyncio.Task[None]] = set()

    def check(self, partition: Partition) -> None:
        """Starts a change if one is due and none is in flight."""
        leading, member, image = partition.leading, self._membership.member, self._membership.image
        topic = image.topic(partition.topic.id)
        if leading is None or member is None or topic is None:
            return
        registered = {registration.broker_id: registration.epoch for registration in image.registrations()}
        wanted = leading.next_isr(registered, self._clock.monotonic_ms())
        if wanted is None:
            return
        key = PartitionKey(topic.id, partition.index)
        write = isr_change(image, self._rules.of(image, topic), key, member, wanted.items())
        if write is None or isinstance(write, Refused):
            return
        _SENT()
        leading.on_isr_sent(wanted)
        task = asyncio.ensure_future(self._change(partition, leading, write, key, leading.proposed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _change(
        self,
        partition: Partition,
        leading: LeaderReplication,
        write: Write,
        key: PartitionKey,
        proposed: Mapping[int, int] | None,
    ) -> None:
        """Commits a change. Until its outcome is known, the larger of the two ISRs counts. A conflict does not tell the
        outcome: the write may have been applied and overwritten since. The stored state tells it, but only if this
        proposal is still open: the image may have settled it already, and the next proposal may be in flight."""
        while partition.leading is leading:
            try:
                revision = await commit(self._membership.store, write)
                if revision is not None:
                    log.info("%s", write.why)
                    await self._membership.seen(revision)
                    return
                await self._membership.refresh()
            except (UnavailableError, OutcomeUnknownError) as error:
                if isinstance(error, OutcomeUnknownError):
                    _UNKNOWN()
                await sleep(self._clock, RETRY_MS)
                continue
            _CONFLICT()
            found = self._membership.image.partition(key)
            is_open = partition.leading is leading and leading.proposed is proposed
            if is_open and found is not None and found.value.leader_epoch == partition.leader_epoch:
                take_stored(partition, leading, found.value, found.version)
            return

    async def stop(self) -> None:
        """Cancels the changes in flight and waits for their tasks. The store may still apply them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def note_stored(partition: Partition, state: PartitionState, version: Revision) -> None:
    """Takes over the state in the image, for a partition that this broker leads."""
    leading = partition.leading
    if leading is not None and version > partition.placement.state_version:
        take_stored(partition, leading, state, version)


def take_stored(partition: Partition, leading: LeaderReplication, state: PartitionState, version: Revision) -> None:
    """Takes over the stored ISR and advances the high watermark if it allows that."""
    placement = partition.placement
    placement.state_version = max(version, placement.state_version)
    placement.isr = tuple(member.broker_id for member in state.isr)
    moved = leading.on_isr_stored(dict(state.isr), has_eligible=bool(state.eligible))
    if moved:
        partition.on_watermark()
    partition.on_isr_changed()

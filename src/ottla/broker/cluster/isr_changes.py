"""Writes ISR changes to the coordination store (safety: isr-changes)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.clock_sleep import sleep
from ottla.broker.cluster.commits import commit
from ottla.coordination.port import Condition, OutcomeUnknownError, Revision, UnavailableError
from ottla.machines.controller.isr import isr_change
from ottla.machines.controller.rules import RuleBook
from ottla.machines.controller.state import PartitionKey, PartitionState
from ottla.machines.controller.writes import Write, joined
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
BATCH_MAX = 500
"""Maximum number of partitions in one commit."""


class IsrProposal(NamedTuple):
    """An ISR that a leader has proposed."""

    partition: Partition
    leading: LeaderReplication
    key: PartitionKey
    proposed: Mapping[int, int] | None
    write: Write

    @property
    def is_current(self) -> bool:
        """Whether this broker still leads the partition in the same epoch."""
        return self.partition.leading is self.leading


class IsrChanges:
    """The pending ISR changes of a leader. Changes that are due together are committed together: when a broker returns,
    it joins the ISRs of thousands of partitions."""

    def __init__(self, membership: Membership, clock: Clock, rules: RuleBook) -> None:
        self._membership = membership
        self._clock = clock
        self._rules = rules
        self._due: deque[IsrProposal] = deque()
        self._batch_max = BATCH_MAX
        self._task: asyncio.Task[None] | None = None

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
        self._due.append(IsrProposal(partition, leading, key, leading.proposed, write))
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._change_all())

    async def _change_all(self) -> None:
        while batch := self._next_batch():
            await self._change(batch, joined([each.write for each in batch]))

    def _next_batch(self) -> list[IsrProposal]:
        """Takes the proposals that one commit can hold. Their conditions come from images of different times, so they
        may contradict one another; then the later one waits."""
        batch: list[IsrProposal] = []
        conditions: dict[str, Condition] = {}
        while self._due and len(batch) < self._batch_max:
            proposal = self._due[0]
            if proposal.is_current:
                wanted = {condition.key: condition for condition in proposal.write.conditions}
                fits = len(conditions | wanted) <= self._membership.store.operations_max
                agrees = all(conditions.get(key, condition) == condition for key, condition in wanted.items())
                if batch and not (fits and agrees):
                    break
                conditions |= wanted
                batch.append(proposal)
            self._due.popleft()
        return batch

    async def _change(self, batch: Sequence[IsrProposal], write: Write) -> None:
        """Commits changes. Until their outcome is known, the larger of the two ISRs counts. A conflict does not tell
        the outcome: the write may have been applied and overwritten since. The stored state tells it, but only if the
        proposal is still open: the image may have settled it already, and the next proposal may be in flight."""
        while any(proposal.is_current for proposal in batch):
            try:
                revision = await commit(self._membership.store, write)
                if revision is not None:
                    log.info("%s", write.why)
                    self._batch_max = min(self._batch_max * 2, BATCH_MAX)
                    return
                await self._membership.refresh()
            except (UnavailableError, OutcomeUnknownError) as error:
                if isinstance(error, OutcomeUnknownError):
                    _UNKNOWN()
                await sleep(self._clock, RETRY_MS)
                continue
            _CONFLICT()
            # One partition that keeps changing must not keep the others from being changed.
            self._batch_max = max(self._batch_max // 2, 1)
            for proposal in batch:
                self._take_stored(proposal)
            return

    def _take_stored(self, proposal: IsrProposal) -> None:
        partition, leading = proposal.partition, proposal.leading
        found = self._membership.image.partition(proposal.key)
        is_open = proposal.is_current and leading.proposed is proposal.proposed
        if is_open and found is not None and found.value.leader_epoch == partition.leader_epoch:
            take_stored(partition, leading, found.value, found.version)

    async def stop(self) -> None:
        """Cancels the changes in flight and waits for their task. The store may still apply them."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


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

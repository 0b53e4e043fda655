"""Gives partitions their roles from the image (lead, follow or wait) and handles their events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from ottla.broker.cluster.failure_reports import FailureReports
from ottla.broker.cluster.fetchers import Fetchers
from ottla.broker.cluster.isr_changes import IsrChanges, note_stored
from ottla.broker.cluster.membership import Membership
from ottla.broker.context import BrokerContext
from ottla.broker.partition.follower_partition import FollowerPartition
from ottla.broker.partition.partition import Partition, PartitionEvents, Role
from ottla.broker.partition.refused_batches import RefusedBatches
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.memory_log import MemoryLog
from ottla.machines.controller.rules import RuleBook
from ottla.machines.controller.state import NO_LEADER, PartitionKey, PartitionState, Versioned
from ottla.machines.replication import LeaderReplication
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.ids import TopicId
from ottla.reach import branch

_TRUNCATING = branch("a broker is elected while it truncates its log", __name__)
_REBUILT = branch("a damaged replica is rebuilt from its leader", __name__)
_GIVES_WAY = branch("a broker with a damaged log gives up its incarnation", __name__)
_ABOVE = branch("a memory log begins anew above all earlier offsets", __name__)

log = logging.getLogger("ottla.cluster")

OFFSETS_OF_AN_EPOCH = 1 << 40


class PartitionRoles(PartitionEvents):
    """The roles of all partitions on this broker."""

    def __init__(
        self, context: BrokerContext, membership: Membership, rules: RuleBook, look_again: Callable[[TopicId], None]
    ) -> None:
        self._context = context
        self._clock = context.clock
        self._membership = membership
        self._rules = rules
        self._look_again = look_again
        """Places a topic again soon, when an ongoing operation may have finished."""
        self._isr_changes = IsrChanges(membership, context.clock, rules)
        self.fetchers = Fetchers(
            membership,
            context.clock,
            self._flush,
            context.shared.receive,
            context.throttles,
            context.peer_security,
        )
        self.failures = FailureReports(context, membership)

    async def stop(self) -> None:
        """Stops ISR changes, failure reports and fetchers. The partitions keep their roles."""
        await self._isr_changes.stop()
        self.failures.stop()
        await self.fetchers.stop()

    # -- roles ------------------------------------------------------------------------------------------------

    def take(self, partition: Partition, found: Versioned[PartitionState]) -> None:
        """Takes the role that the image gives to this broker's replica."""
        state = found.value
        was_read_here = partition.is_read_here
        placement = partition.placement
        placement.leader, placement.replicas = state.leader, state.replicas
        placement.isr = tuple(member.broker_id for member in state.isr)
        if was_read_here and not partition.is_read_here:
            partition.watches.wake_fetches()
        member = self._membership.member
        if member is None or partition.log.failed is not None:
            self.stand_by(partition, state.leader_epoch)
        elif state.leader_member == member:
            self._lead(partition, state, found)
        else:
            self._follow(partition, state)
        self._context.events.on_role(partition)

    def stand_by(self, partition: Partition, leader_epoch: int) -> None:
        """Gives up the partition's role."""
        self.fetchers.leave(partition)
        partition.stand_by(leader_epoch)
        self._context.events.on_role(partition)

    def _lead(self, partition: Partition, state: PartitionState, found: Versioned[PartitionState]) -> None:
        if partition.role is not Role.LEADER or partition.leader_epoch != state.leader_epoch:
            self._begin_to_lead(partition, state, found)
            return
        assert partition.leading is not None
        partition.leading.on_replicas(state.replicas)
        topic = self._membership.image.topic(partition.topic.id)
        if topic is not None and partition.leading.on_min_in_sync(
            self._rules.of(self._membership.image, topic).min_insync(state)
        ):
            partition.on_watermark()
        note_stored(partition, state, found.version)
        self._isr_changes.check(partition)

    def _begin_to_lead(self, partition: Partition, state: PartitionState, found: Versioned[PartitionState]) -> None:
        self.fetchers.leave(partition)
        if partition.log.truncating:
            _TRUNCATING()
            # The log end is not known before the truncation finishes.
            partition.stand_by(state.leader_epoch)
            self._look_again(partition.topic.id)
            return
        _begin_above_what_was_lost(partition, state.anew_in_epoch)
        topic = self._membership.image.topic(partition.topic.id)
        assert topic is not None
        leading = LeaderReplication(
            self._context.node_id,
            state.replicas,
            dict(state.isr),
            min_in_sync=self._rules.of(self._membership.image, topic).min_insync(state),
            high_watermark=max(partition.high_watermark, partition.log.start_offset),
            end=partition.log.end_offset,
            acknowledged_end=partition.log.acknowledged_end,
            lag_max_ms=float(self._context.config.replica_lag_time_max_ms),
            now_ms=self._clock.monotonic_ms(),
            acknowledges_by_fetch=isinstance(partition.log, MemoryLog),
            has_eligible=bool(state.eligible),
        )
        partition.lead(leading, state.leader_epoch)
        partition.placement.state_version = found.version
        log.info("%s-%d: became leader in epoch %d", partition.topic.name, partition.index, state.leader_epoch)
        partition.on_watermark()

    def _follow(self, partition: Partition, state: PartitionState) -> None:
        registration = self._membership.image.registration(state.leader)
        if state.leader == NO_LEADER or registration is None or registration.member != state.leader_member:
            self.fetchers.leave(partition)
            if partition.role is not Role.NONE or partition.leader_epoch < state.leader_epoch:
                partition.stand_by(state.leader_epoch)
            return
        following = partition.following
        is_same = following is not None and following.leader_member == state.leader_member
        if is_same and partition.leader_epoch == state.leader_epoch:
            if self._context.node_id in partition.placement.isr:
                self.fetchers.on_in_sync(partition)
            return
        self.fetchers.leave(partition)
        watermark = min(partition.high_watermark, partition.log.end_offset)
        is_in_sync = self._membership.member in state.isr
        following = FollowerPartition(
            partition, self._context.store, state.leader_member, state.leader_epoch, watermark, is_in_sync=is_in_sync
        )
        partition.follow(following, state.leader_epoch)
        if _is_damaged(partition) and self._is_known_as_damaged(partition) and not partition.log.truncating:
            _REBUILT()
            assert partition.following is not None
            name = f"{partition.topic.name}-{partition.index}"
            log.warning("%s: the local log is damaged; rebuilding it from the leader", name)
            partition.following.rebuild(partition.log.start_offset)
        self.fetchers.follow(partition, registration)

    # -- events of partitions ---------------------------------------------------------------------------------

    def on_follower_heard(self, partition: Partition) -> None:
        """Checks whether a follower outside the ISR can join it."""
        leading = partition.leading
        if leading is not None and len(leading.isr) < len(partition.placement.replicas):
            self._isr_changes.check(partition)

    def on_synced_end(self, partition: Partition, broker_id: int, broker_epoch: int, end: int) -> None:
        """Handles a follower's report of its synced end."""
        assert partition.leading is not None
        if partition.leading.on_acknowledged(broker_id, broker_epoch, end, self._clock.monotonic_ms()):
            partition.on_watermark()
        self.on_follower_heard(partition)

    def on_follower_acknowledged(self, partition: Partition) -> None:
        """Reports progress of the local log to the leader."""
        self.fetchers.on_acknowledged(partition)

    def on_log_failed(self, partition: Partition) -> None:
        """Gives up the partition's role and reports the failure."""
        log.error("%s-%d: its log has failed on this broker", partition.topic.name, partition.index)
        self.stand_by(partition, partition.leader_epoch)
        self.failures.report()

    # -- damage -----------------------------------------------------------------------------------------------

    def damaged_classes(self) -> frozenset[Durability]:
        """Returns the durability classes of logs that wait to be rebuilt."""
        return frozenset(each.topic.config.durability for each in self._context.partitions() if _is_damaged(each))

    def _is_known_as_damaged(self, partition: Partition) -> bool:
        """Whether this incarnation reported damage of the partition's class when it registered and has not joined the
        ISR since: then no replica relies on this log. Once a log has joined, the report says nothing about it any
        more."""
        registration = self._membership.registration
        since = registration.kept.since(partition.topic.config.durability) if registration is not None else 0
        found = self._membership.image.partition(PartitionKey(partition.topic.id, partition.index))
        is_in_sync = found is not None and self._membership.member in found.value.isr
        return registration is not None and since == registration.epoch and not is_in_sync

    def _others_are_in_sync(self, durability: Durability) -> bool:
        """Whether every partition of this class has another replica that can lead it. A damaged replica is better than
        none."""
        image, me = self._membership.image, self._context.node_id
        for partition in self._context.partitions():
            found = image.partition(PartitionKey(partition.topic.id, partition.index))
            if found is not None and partition.topic.config.durability is durability and found.value.in_isr(me):
                others = [member for member in found.value.isr if member.broker_id != me]
                if not any(image.registration(member.broker_id) is not None for member in others):
                    return False
        return True

    def check_damage(self) -> None:
        """Handles damage that a read found after start-up. Other replicas have to lead, and this one must not be
        elected while it is rebuilt: the broker registers again as an incarnation that has lost its data
        (safety: lost-incarnation)."""
        found = [each for each in self._context.partitions() if _is_damaged(each)]
        unknown = [each for each in found if not self._is_known_as_damaged(each)]
        unknown = [each for each in unknown if self._others_are_in_sync(each.topic.config.durability)]
        if unknown and self._membership.registration is not None:
            names = ", ".join(f"{each.topic.name}-{each.index}" for each in unknown)
            log.error("%s: the local logs are damaged; giving up leadership and rebuilding them", names)
            _GIVES_WAY()
            self._membership.start_over()

    # -- flushes and ISRs -------------------------------------------------------------------------------------

    def _flush(self, partitions: Iterable[Partition], done: Callable[[], None]) -> None:
        logs = [each.log for each in partitions if isinstance(each.log, FileLog) and each.log.failed is None]
        if self._context.store.flusher is None or not logs:
            done()
        else:
            self._context.store.flusher.run(done, logs)

    def check_isrs(self) -> None:
        """Checks all ISRs periodically, because a follower that falls behind does not report it."""
        for partition in self._context.partitions():
            if partition.leading is not None and len(partition.placement.replicas) > 1:
                self._isr_changes.check(partition)


def _begin_above_what_was_lost(partition: Partition, anew_in_epoch: int) -> None:
    """Resets a `memory` log that lost every copy to an offset above all that earlier epochs can have assigned
    (safety: memory-loss): each epoch has a range of its own. Remaining records below come from a replica that was
    behind at the time of the loss. They lack the end, so continuing there would assign offsets twice."""
    first = anew_in_epoch * OFFSETS_OF_AN_EPOCH
    if isinstance(partition.log, MemoryLog) and partition.log.end_offset < first:
        _ABOVE()
        partition.log.reset_to(first)
        partition.refused = RefusedBatches()  # no producer retries batches from before the loss


def _is_damaged(partition: Partition) -> bool:
    return isinstance(partition.log, FileLog) and bool(partition.log.damages)

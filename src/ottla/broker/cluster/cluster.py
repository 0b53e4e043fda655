"""What a broker does in a cluster: the image says who leads what, and the partitions here take their roles from it.

image ----> topics and where their partitions are (what clients are told)
  |-------> partitions here: lead, follow, wait
  '-------> replica fetchers, one for each broker that is followed
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.broker.broker import Node
from ottla.broker.cluster.commits import commit
from ottla.broker.cluster.controller_duty import ControllerDuty
from ottla.broker.cluster.following import Following
from ottla.broker.cluster.isr_changes import IsrChanges, note_stored
from ottla.broker.cluster.membership import Membership, MembershipEvents
from ottla.broker.cluster.partition_admin import PartitionAdmin
from ottla.broker.cluster.replica_fetcher import ReplicaFetcher
from ottla.broker.cluster.waiting import sleep
from ottla.broker.partition import AnyLog, Layout, Partition, Role
from ottla.broker.topics import Topic
from ottla.client.connection import Address
from ottla.coordination.port import Committed, HasVersion, IsAbsent, OutcomeUnknownError, Put, UnavailableError
from ottla.log.file_log import FileLog
from ottla.log.memory_log import MemoryLog
from ottla.log.truncation import Truncation
from ottla.machines.controller import keys
from ottla.machines.controller.broker_requests import BrokerStart, is_drained, report_failures, start_draining
from ottla.machines.controller.rules import RuleBook
from ottla.machines.controller.state import (
    NO_LEADER,
    FailedLogs,
    Member,
    PartitionKey,
    PartitionState,
    Registration,
    TopicState,
    Versioned,
)
from ottla.machines.controller.touched import Touched
from ottla.machines.controller.writes import Write
from ottla.machines.replication import LeaderReplication
from ottla.model.durability import Durability
from ottla.model.errors import ErrorCode, Refused
from ottla.model.ids import LogKey, PartitionIndex, TopicId
from ottla.ports import Completion, Timer

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

log = logging.getLogger("ottla.cluster")

ISR_CHECK_MS = 250.0
PRODUCER_IDS = "ids/producers"
OFFSETS_OF_AN_EPOCH = 1 << 40
LOOK_AGAIN_MS = 20.0
FAILURE_RETRY_MS = 500.0
HAND_OVER_S = 10.0
HAND_OVER_CHECK_MS = 20.0


class Cluster(MembershipEvents):
    def __init__(self, broker: Broker, membership: Membership) -> None:
        self._broker = broker
        self._clock = broker.clock
        self.membership = membership
        self.rules = RuleBook(broker.static_config.given)
        self.controller = ControllerDuty(membership, broker.clock, self.rules)
        self.partition_admin = PartitionAdmin(self, allow_shared_machine=broker.config.host_shared)
        self._isr_changes = IsrChanges(membership, broker.clock, self.rules)
        self._fetchers: dict[Member, ReplicaFetcher] = {}
        self._timer: Timer | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._reports_failures = False
        self._is_running = False

    # -- life -------------------------------------------------------------------------------------------------

    def hosted(self) -> Iterable[tuple[LogKey, TopicState]]:
        """The logs that should be here, by the image."""
        image = self.membership.image
        for key in image.hosted_by(self._broker.node_id):
            topic = image.topic(key.topic_id)
            if topic is not None:
                yield LogKey(key.topic_id, PartitionIndex(key.partition)), topic

    def open(self) -> None:
        """The image is loaded and the logs are recovered: clients may be told of both."""
        self._is_running = True
        self.on_reloaded()

    async def join(self, start: BrokerStart) -> None:
        self.membership.events += [self, self.controller]
        self.membership.failed_logs = self._failed_logs
        self.controller.start()
        await self.membership.join(start)
        self._arm()

    def damaged_classes(self) -> list[Durability]:
        """In which recovery found damage: what was there is not all there any more."""
        damaged = [log.config.durability for log in self._broker.file_logs() if log.damages or log.failed is not None]
        return sorted(set(damaged))

    async def hand_over(self) -> None:
        """Controlled shutdown: others lead before this broker goes. Waits a little, but not for ever."""
        write = start_draining(self.membership.image, self._broker.node_id)
        if not isinstance(write, Write):
            return
        with contextlib.suppress(UnavailableError, OutcomeUnknownError, TimeoutError):
            await commit(self.membership.store, write)
            async with asyncio.timeout(HAND_OVER_S):
                while not is_drained(self.membership.image, self._broker.node_id):
                    await sleep(self._clock, HAND_OVER_CHECK_MS)

    async def stop(self) -> None:
        self._is_running = False
        if self._timer is not None:
            self._timer.cancel()
        await self.controller.stop()
        await self._isr_changes.stop()
        for task in self._tasks:
            task.cancel()
        for fetcher in self._fetchers.values():
            await fetcher.stop()
        await self.membership.leave()

    # -- what handlers ask ------------------------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        registrations = sorted(self.membership.image.registrations(), key=lambda found: found.broker_id)
        return [Node(found.broker_id, found.host, found.port, found.rack) for found in registrations]

    @property
    def controller_id(self) -> int:
        found = self.membership.image.controller
        return found.value.broker_id if found is not None else -1

    def knows_replica(self, broker_id: int, broker_epoch: int) -> bool:
        registration = self.membership.image.registration(broker_id)
        return registration is not None and registration.epoch == broker_epoch

    async def reserve_producer_ids(self, count: int) -> int | Refused:
        """The first of `count` ids that nobody else in the cluster gets."""
        store = self.membership.store
        try:
            while True:
                found = await store.get(PRODUCER_IDS)
                first = int(found.value) if found is not None else 0
                condition = IsAbsent(PRODUCER_IDS) if found is None else HasVersion(PRODUCER_IDS, found.version)
                # After an unknown outcome the next try reads again: at worst a block of ids is never used.
                with contextlib.suppress(OutcomeUnknownError):
                    outcome = await store.commit([condition], [Put(PRODUCER_IDS, str(first + count).encode())])
                    if isinstance(outcome, Committed):
                        return first
        except UnavailableError as error:
            return Refused(ErrorCode.coordinator_not_available, str(error))

    async def refresh(self) -> Refused | None:
        """Waits until the image has what the store has."""
        try:
            await self.membership.refresh()
        except UnavailableError as error:
            return Refused(ErrorCode.leader_not_available, f"the coordination store is not available: {error}")
        return None

    # -- the image changes ------------------------------------------------------------------------------------

    def on_registered(self) -> None:
        self.on_reloaded()

    def on_lease_lost(self) -> None:
        """Another incarnation will have to be elected: this one leads and follows nothing any more."""
        for partition in self._broker.partitions():
            self._leave_fetcher(partition)
            partition.stand_by(partition.leader_epoch)
        self._drop_idle_fetchers()

    def on_reloaded(self) -> None:
        if not self._is_running:
            return
        image = self.membership.image
        self._apply_dynamic_configs()
        known = {topic.id for topic in image.topics()}
        for topic in list(self._broker.topics):
            if topic.id not in known:
                self._remove_topic(topic)
        for state in list(image.topics()):
            self._place_topic(state)

    def on_touched(self, touched: Touched) -> None:
        if not self._is_running:
            return
        image = self.membership.image
        if touched.configs:
            self._apply_dynamic_configs()
        topics: set[TopicId] = set(touched.topics)
        topics |= {key.topic_id for key in touched.partitions}
        if touched.brokers:
            # Addresses, incarnations: whoever is followed or led may be another one now.
            topics |= {state.id for state in image.topics()}
        for topic_id in topics:
            state = image.topic(topic_id)
            topic = self._broker.topics.by_id(topic_id)
            if state is not None:
                self._place_topic(state)
            elif topic is not None:
                self._remove_topic(topic)
        self._drop_idle_fetchers()

    def _apply_dynamic_configs(self) -> None:
        wanted = dict(self.membership.image.configs(keys.DEFAULT))
        if wanted != self._broker.dynamic_overrides:
            self._broker.dynamic_overrides = wanted
            self._broker.admin.apply_dynamic_configs()

    def _place_topic(self, state: TopicState) -> None:
        broker = self._broker
        topic = broker.topics.by_id(state.id)
        if topic is None:
            config = broker.admin.config_for(state.configs)
            topic = Topic(state.name, state.id, config, dict(state.configs), state.created_ms, spread=[])
            broker.topics.add(topic)
        elif topic.overrides != dict(state.configs):
            broker.admin.use_config(topic, state.configs)
        found = self.membership.image.partitions_of(state.id)
        topic.spread = [self._layout(index, versioned.value) for index, versioned in found.items()]
        broker.topics.changed()
        for index, versioned in found.items():
            self._place_partition(topic, index, versioned)
        for partition in [each for each in topic.partitions if not self._is_hosted(found.get(each.index))]:
            self._remove_partition(topic, partition)

    def _layout(self, index: int, state: PartitionState) -> Layout:
        image = self.membership.image
        offline = tuple(broker_id for broker_id in state.replicas if image.registration(broker_id) is None)
        isr = tuple(member.broker_id for member in state.isr)
        eligible = tuple(member.broker_id for member in state.eligible)
        leader = state.leader if state.leader not in offline else NO_LEADER
        return Layout(index, leader, state.leader_epoch, state.replicas, isr, offline, eligible)

    def _is_hosted(self, found: Versioned[PartitionState] | None) -> bool:
        return found is not None and self._broker.node_id in found.value.replicas

    def _remove_topic(self, topic: Topic) -> None:
        for partition in list(topic.partitions):
            self._remove_partition(topic, partition)
        if not topic.partitions:
            self._broker.topics.remove(topic)

    def _remove_partition(self, topic: Topic, partition: Partition) -> None:
        self._leave_fetcher(partition)
        if not self.membership.image.is_obsolete(PartitionKey(topic.id, partition.index), self._broker.node_id):
            # Its entry is there and cannot be read, by this version at least: nothing is removed for that (SAFETY 26).
            partition.stand_by(partition.leader_epoch)
            return
        partition.close()
        topic.partitions.remove(partition)
        if isinstance(partition.log, FileLog):
            self._broker.store.delete(partition.log)
        else:
            partition.log.close()

    # -- roles ------------------------------------------------------------------------------------------------

    def _place_partition(self, topic: Topic, index: int, found: Versioned[PartitionState]) -> None:
        state = found.value
        if self._broker.node_id not in state.replicas:
            return
        partition = topic.partition(index) or self._open(topic, index)
        partition.leader, partition.replicas = state.leader, state.replicas
        partition.isr = tuple(member.broker_id for member in state.isr)
        member = self.membership.member
        if member is None or partition.log.failed is not None:
            self._leave_fetcher(partition)
            partition.stand_by(state.leader_epoch)
        elif state.leader_member == member:
            self._lead(partition, state, found)
        else:
            self._follow(partition, state)

    def _open(self, topic: Topic, index: int) -> Partition:
        broker = self._broker
        key = LogKey(topic.id, PartitionIndex(index))
        partition = Partition(
            topic, index, self._log_for(key, topic), node_id=broker.node_id, leader_epoch=-1, wakeups=broker.wakeups
        )
        partition.role = Role.NONE
        partition.events = self
        topic.partitions.append(partition)
        broker.housekeeping.look_at(topic)
        return partition

    def _log_for(self, key: LogKey, topic: Topic) -> AnyLog:
        if topic.config.durability is Durability.MEMORY:
            memory = MemoryLog(self._broker.shared, key, topic.config, 0)
            memory.reserved_end = 2**62
            return memory
        return self._broker.store.logs.get(key) or self._broker.store.create(key, topic.config)

    def _lead(self, partition: Partition, state: PartitionState, found: Versioned[PartitionState]) -> None:
        if partition.role is not Role.LEADER or partition.leader_epoch != state.leader_epoch:
            self._leave_fetcher(partition)
            if partition.log.truncating:
                # Its end is not known before that is over.
                partition.stand_by(state.leader_epoch)
                self._look_again(partition.topic.id)
                return
            self._begin_above_what_was_lost(partition, state.leader_epoch)
            watermark = max(partition.high_watermark, partition.log.start_offset)
            topic = self.membership.image.topic(partition.topic.id)
            assert topic is not None
            leading = LeaderReplication(
                self._broker.node_id,
                state.replicas,
                dict(state.isr),
                min_in_sync=self.rules.of(self.membership.image, topic).min_insync(state),
                high_watermark=watermark,
                end=partition.log.end_offset,
                acknowledged_end=partition.log.acknowledged_end,
                lag_max_ms=float(self._broker.config.replica_lag_time_max_ms),
                now_ms=self._clock.monotonic_ms(),
                acknowledges_by_fetch=isinstance(partition.log, MemoryLog),
                has_eligible=bool(state.eligible),
            )
            partition.lead(leading, state.leader_epoch)
            partition.state_version = found.version
            log.info("%s-%d: leads in epoch %d", partition.topic.name, partition.index, state.leader_epoch)
            partition.on_watermark()
            return
        assert partition.leading is not None
        partition.leading.on_replicas(state.replicas)
        topic = self.membership.image.topic(partition.topic.id)
        if topic is not None and partition.leading.on_min_in_sync(
            self.rules.of(self.membership.image, topic).min_insync(state)
        ):
            partition.on_watermark()
        note_stored(partition, state, found.version)
        self._isr_changes.check(partition)

    def _begin_above_what_was_lost(self, partition: Partition, leader_epoch: int) -> None:
        """A `memory` log that is empty in a later epoch may have lost every copy. It goes on above all offsets that any
        epoch before can have given out (SAFETY 25): each epoch has a range of its own."""
        if isinstance(partition.log, MemoryLog) and partition.log.end_offset == 0 and leader_epoch > 0:
            partition.log.reset_to(leader_epoch * OFFSETS_OF_AN_EPOCH)

    def _look_again(self, topic_id: TopicId) -> None:
        def look() -> None:
            state = self.membership.image.topic(topic_id)
            if self._is_running and state is not None:
                self._place_topic(state)

        self._clock.call_later(LOOK_AGAIN_MS, look)

    def _follow(self, partition: Partition, state: PartitionState) -> None:
        registration = self.membership.image.registration(state.leader)
        if state.leader == NO_LEADER or registration is None or registration.member != state.leader_member:
            self._leave_fetcher(partition)
            if partition.role is not Role.NONE or partition.leader_epoch < state.leader_epoch:
                partition.stand_by(state.leader_epoch)
            return
        following = partition.following
        is_same = following is not None and following.leader_member == state.leader_member
        if is_same and partition.leader_epoch == state.leader_epoch:
            return
        self._leave_fetcher(partition)
        watermark = min(partition.high_watermark, partition.log.end_offset)
        partition.follow(Following(partition, state.leader_member, state.leader_epoch, watermark), state.leader_epoch)
        if isinstance(partition.log, FileLog) and partition.log.damages and not partition.log.truncating:
            assert partition.following is not None
            log.warning("%s-%d: damaged here, built anew from its leader", partition.topic.name, partition.index)
            partition.following.rebuild(partition.log.start_offset)
        self._fetcher_for(registration).follow(partition)

    def _fetcher_for(self, leader: Registration) -> ReplicaFetcher:
        self._drop_idle_fetchers()
        fetcher = self._fetchers.get(leader.member)
        if fetcher is None:
            me = self.membership.member
            assert me is not None
            fetcher = ReplicaFetcher(self._clock, Address(leader.host, leader.port), *me)
            self._fetchers[leader.member] = fetcher
        return fetcher

    def _leave_fetcher(self, partition: Partition) -> None:
        if partition.following is not None:
            fetcher = self._fetchers.get(partition.following.leader_member)
            if fetcher is not None:
                fetcher.leave(partition)

    def _drop_idle_fetchers(self) -> None:
        me = self.membership.member
        for member, fetcher in list(self._fetchers.items()):
            if fetcher.is_idle or fetcher.member != me:
                del self._fetchers[member]
                asyncio.ensure_future(fetcher.stop())  # noqa: RUF006 # it ends by itself, and nobody waits for it

    # -- what partitions tell ---------------------------------------------------------------------------------

    def on_follower_heard(self, partition: Partition) -> None:
        leading = partition.leading
        if leading is not None and len(leading.isr) < len(partition.replicas):
            self._isr_changes.check(partition)

    def on_follower_acknowledged(self, partition: Partition) -> None:
        if partition.following is not None:
            fetcher = self._fetchers.get(partition.following.leader_member)
            if fetcher is not None:
                fetcher.on_acknowledged(partition)

    def led_partition(self, topic_id: TopicId, index: int, leader_epoch: int) -> Partition | None:
        topic = self._broker.topics.by_id(topic_id)
        partition = topic.partition(index) if topic is not None else None
        is_led = partition is not None and partition.leading is not None and partition.leader_epoch == leader_epoch
        return partition if is_led else None

    def on_synced_end(self, partition: Partition, broker_id: int, broker_epoch: int, end: int) -> None:
        assert partition.leading is not None
        if partition.leading.on_acknowledged(broker_id, broker_epoch, end, self._clock.monotonic_ms()):
            partition.on_watermark()
        self.on_follower_heard(partition)

    def on_log_failed(self, partition: Partition) -> None:
        log.error("%s-%d: its log has failed on this broker", partition.topic.name, partition.index)
        self._leave_fetcher(partition)
        partition.stand_by(partition.leader_epoch)
        if not self._reports_failures:
            self._reports_failures = True
            self._clock.call_soon(self._report_failures)

    def _report_failures(self) -> None:
        """Others have to lead what this broker cannot write any more (SAFETY 11)."""
        task = asyncio.ensure_future(self._store_failures())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _failed_logs(self) -> frozenset[PartitionKey]:
        return frozenset(
            PartitionKey(partition.topic.id, partition.index)
            for partition in self._broker.partitions()
            if partition.log.failed is not None
        )

    async def _store_failures(self) -> None:
        self._reports_failures = False
        member, lease = self.membership.member, self.membership.lease
        if member is None or lease is None:
            return
        report = FailedLogs(member.broker_epoch, partitions=self._failed_logs())
        write = report_failures(self.membership.image, member.broker_id, report, lease.id)
        try:
            is_stored = await commit(self.membership.store, write) is not None
        except (UnavailableError, OutcomeUnknownError):
            is_stored = False
        if not is_stored and not self._reports_failures:
            self._reports_failures = True
            self._clock.call_later(FAILURE_RETRY_MS, self._report_failures)

    def truncate_log(self, partition: Partition, offset: int, done: Completion) -> None:
        file_log = partition.log
        if isinstance(file_log, MemoryLog):
            file_log.truncate_to(offset)
            done(None)
            return
        assert self._broker.store.flusher is not None
        Truncation(file_log, self._broker.store.flusher, offset, done).begin()

    def reset_log(self, partition: Partition, offset: int, done: Completion) -> None:
        file_log = partition.log
        if isinstance(file_log, MemoryLog):
            file_log.reset_to(offset)
            done(None)
            return
        assert self._broker.store.flusher is not None
        Truncation(file_log, self._broker.store.flusher, offset, done, resets=True).begin()

    # -- time -------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        self._timer = self._clock.call_later(ISR_CHECK_MS, self._tick)

    def _tick(self) -> None:
        try:
            for partition in self._broker.partitions():
                if partition.leading is not None and len(partition.replicas) > 1:
                    self._isr_changes.check(partition)
        finally:
            if self._is_running:
                self._arm()

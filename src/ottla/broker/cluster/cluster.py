"""A broker's part in a cluster: the image says who leads what, and the partitions here take their roles from it.

image ----> placing     topics and the placement of their partitions (metadata for clients), logs on this broker
  |           '-> roles     lead, follow, wait; ISR changes, reports of failed logs
  |                 '-> fetchers    one for each broker that is followed
  '-------> controller_duty     if this broker is the controller
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from ottla.broker.broker import Node
from ottla.broker.cluster.clean_up import CleanUp
from ottla.broker.cluster.clock_sleep import sleep
from ottla.broker.cluster.commits import commit
from ottla.broker.cluster.controller_loop import ControllerLoop
from ottla.broker.cluster.leader_rebalance import LeaderRebalance
from ottla.broker.cluster.membership import Membership, MembershipEvents
from ottla.broker.cluster.partition_admin import PartitionAdmin
from ottla.broker.cluster.producer_ids import reserve_producer_ids
from ottla.broker.cluster.read_replicas import preferred_read_replica
from ottla.broker.cluster.replica_growth import ReplicaGrowth
from ottla.broker.cluster.topic_placement import TopicPlacement
from ottla.broker.coordinators.internal_topic import TopicPlan
from ottla.broker.groups.settings import offsets_topic_plan
from ottla.broker.partition.partition import Partition
from ottla.broker.transactions.settings import STATE_TOPIC, state_topic_plan
from ottla.coordination.port import OutcomeUnknownError, UnavailableError
from ottla.machines.controller.broker_requests import BrokerStart, is_drained, start_draining
from ottla.machines.controller.image_changes import ImageChanges
from ottla.machines.controller.rules import RuleBook
from ottla.machines.controller.state import TopicState
from ottla.machines.controller.writes import Write
from ottla.machines.groups.placement import OFFSETS_TOPIC
from ottla.ports import Timer
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import LogKey, PartitionIndex, TopicId
from ottla.reach import branch

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

_HANDED_OVER = branch("leadership is handed over before a stop", __name__)

ISR_CHECK_MS = 250.0
HAND_OVER_S = 10.0
HAND_OVER_CHECK_MS = 20.0
WATERMARK_S = 2.0


class Cluster(MembershipEvents):
    """The cluster code of one broker."""

    def __init__(self, broker: Broker, membership: Membership) -> None:
        self._broker = broker
        self._clock = broker.clock
        self.membership = membership
        self.rules = RuleBook(broker.static_config.given)
        self.controller = ControllerLoop(membership, broker.clock, self.rules)
        self.partition_admin = PartitionAdmin(self, allow_shared_machine=broker.config.host_shared)
        self._placing = TopicPlacement(broker, membership, self.rules)
        self._roles = self._placing.roles
        self.clean_up = CleanUp(broker.node_id, membership, self._placing)
        self._rebalancing = LeaderRebalance(self.controller, membership, broker.clock, broker.static_config)
        self._growth = ReplicaGrowth(
            self, broker.clock, self._internal_topics, allow_shared_machine=broker.config.host_shared
        )
        self._timer: Timer | None = None

    def _internal_topics(self) -> dict[str, TopicPlan]:
        config = self._broker.config
        return {OFFSETS_TOPIC: offsets_topic_plan(config), STATE_TOPIC: state_topic_plan(config)}

    # -- life cycle -------------------------------------------------------------------------------------------

    def hosted(self) -> Iterable[tuple[LogKey, TopicState]]:
        """Iterates over the logs that the image places on this broker."""
        image = self.membership.image
        for key in image.hosted_by(self._broker.node_id):
            topic = image.topic(key.topic_id)
            if topic is not None:
                yield LogKey(key.topic_id, PartitionIndex(key.partition)), topic

    def apply_dynamic_configs(self) -> None:
        self._placing.apply_dynamic_configs()

    def open(self) -> None:
        """Makes topics visible to clients, once the image is loaded and the logs are recovered."""
        self._placing.is_running = True
        self._placing.place_all()

    async def join(self, start: BrokerStart) -> None:
        """Registers the broker and starts its periodic work."""
        self.membership.events += [self, self.controller]
        self.membership.failed_logs = self._roles.failures.failed_logs
        self.membership.damaged_classes = self._roles.damaged_classes
        self.controller.start()
        self._rebalancing.start()
        self._growth.start()
        await self.membership.join(replace(start, process_id=uuid4().hex))
        self._broker.store.forget_lost_entries()
        self._arm()

    def damaged_classes(self) -> list[Durability]:
        """Returns the durability classes in which recovery found damage, so that data may be missing."""
        damaged = {log.config.durability for log in self._broker.file_logs() if log.damages or log.failed is not None}
        if self._broker.store.may_lack_entries:
            damaged.add(Durability.DISK)  # leaves every ISR and fetches from the leaders (safety: journal-blocks)
        return sorted(damaged)

    async def hand_over(self) -> None:
        """Hands over leadership before a controlled shutdown. Waits for it, up to a limit."""
        write = start_draining(self.membership.image, self._broker.node_id)
        if not isinstance(write, Write):
            return
        with contextlib.suppress(UnavailableError, OutcomeUnknownError, TimeoutError):
            await commit(self.membership.store, write)
            async with asyncio.timeout(HAND_OVER_S):
                while not is_drained(self.membership.image, self._broker.node_id):
                    await sleep(self._clock, HAND_OVER_CHECK_MS)
            _HANDED_OVER()
            async with asyncio.timeout(WATERMARK_S):
                await self._watermarks_known()

    async def _watermarks_known(self) -> None:
        """Waits until the new leaders know the high watermarks. A new leader may know a lower watermark than was
        acknowledged here. It learns the rest from this broker as its follower; with too few replicas in sync, it could
        not on its own."""
        ends = {each: each.log.end_offset for each in self._broker.partitions() if self._broker.node_id in each.isr}
        while any(_lacks_watermark(partition, end) for partition, end in ends.items()):
            await sleep(self._clock, HAND_OVER_CHECK_MS)

    async def stop(self) -> None:
        """Leaves the cluster."""
        self._placing.is_running = False
        if self._timer is not None:
            self._timer.cancel()
        self._rebalancing.stop()
        await self._growth.stop()
        await self.clean_up.stop()
        await self.controller.stop()
        await self._roles.stop()
        await self.membership.leave()

    async def stop_following(self) -> None:
        """Stops replication without notifying any broker, for a simulated crash."""
        await self._roles.fetchers.stop()

    # -- for handlers -----------------------------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        registrations = sorted(self.membership.image.registrations(), key=lambda found: found.broker_id)
        return [Node(found.broker_id, found.host, found.port, found.rack, found.wal_port) for found in registrations]

    def peer_address(self, broker_id: int) -> tuple[str, int] | None:
        """Returns the address at which other brokers reach a live one."""
        registration = self.membership.image.registration(broker_id)
        return None if registration is None else registration.inter_broker_address

    @property
    def controller_id(self) -> int:
        found = self.membership.image.controller
        return found.value.broker_id if found is not None else -1

    def knows_replica(self, broker_id: int, broker_epoch: int) -> bool:
        registration = self.membership.image.registration(broker_id)
        return registration is not None and registration.epoch == broker_epoch

    async def reserve_producer_ids(self, count: int) -> int | Refused:
        return await reserve_producer_ids(self.membership.store, count)

    async def refresh(self) -> Refused | None:
        """Waits until the image has caught up with the store."""
        try:
            await self.membership.refresh()
        except UnavailableError as error:
            return Refused(ErrorCode.leader_not_available, f"the coordination store is not available: {error}")
        return None

    def preferred_read_replica(self, partition: Partition, rack: str, offset: int) -> int | None:
        return preferred_read_replica(self.membership.image, self._broker.node_id, partition, rack, offset)

    def on_follower_heard(self, partition: Partition) -> None:
        self._roles.on_follower_heard(partition)

    def on_synced_end(self, partition: Partition, broker_id: int, broker_epoch: int, end: int) -> None:
        """Handles a follower's report of its synced end."""
        self._roles.on_synced_end(partition, broker_id, broker_epoch, end)

    def led_partition(self, topic_id: TopicId, index: int, leader_epoch: int) -> Partition | None:
        """Returns the partition if this broker leads it in this epoch."""
        topic = self._broker.topics.by_id(topic_id)
        partition = topic.partition(index) if topic is not None else None
        is_led = partition is not None and partition.leading is not None and partition.leader_epoch == leader_epoch
        return partition if is_led else None

    # -- changes of the image ---------------------------------------------------------------------------------

    def on_registered(self) -> None:
        self._placing.place_all()

    def on_lease_lost(self) -> None:
        self._placing.stand_by()

    def on_reloaded(self) -> None:
        self._placing.place_all()

    def on_touched(self, touched: ImageChanges) -> None:
        self._placing.place(touched)

    # -- time -------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        self._timer = self._clock.call_later(ISR_CHECK_MS, self._tick)

    def _tick(self) -> None:
        try:
            self._roles.check_isrs()
            self.clean_up.check()
            self._roles.check_damage()
        finally:
            if self._placing.is_running:
                self._arm()


def _lacks_watermark(partition: Partition, end: int) -> bool:
    following = partition.following
    return following is not None and following.leader_watermark < min(end, partition.log.end_offset)

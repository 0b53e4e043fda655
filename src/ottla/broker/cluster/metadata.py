"""A broker's part in a cluster: the image says who leads what, and the partitions here take their roles from it.

image ----> topic_placement     topics and the placement of their partitions (metadata for clients), logs here
  |           '-> roles             lead, follow, wait; ISR changes, reports of failed logs
  |                 '-> fetchers    one for each broker that is followed
  '-------> controller_loop     if this broker is the controller
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from uuid import uuid4

from ottla.broker.cluster.acl_admin import AclFollower, ClusterAclAdmin
from ottla.broker.cluster.admin import ClusterAdmin
from ottla.broker.cluster.clean_up import CleanUp
from ottla.broker.cluster.controller_loop import ControllerLoop
from ottla.broker.cluster.entries import StoredEntries
from ottla.broker.cluster.hand_over import hand_over
from ottla.broker.cluster.identity import note_clean_shutdown
from ottla.broker.cluster.leader_rebalance import LeaderRebalance
from ottla.broker.cluster.membership import Membership, MembershipEvents
from ottla.broker.cluster.partition_admin import ControllerPartitionAdmin
from ottla.broker.cluster.producer_ids import reserve_producer_ids
from ottla.broker.cluster.read_replicas import preferred_read_replica
from ottla.broker.cluster.replica_growth import ReplicaGrowth
from ottla.broker.cluster.topic_placement import TopicPlacement
from ottla.broker.context import BrokerContext
from ottla.broker.coordinators.internal_topic import TopicPlan
from ottla.broker.endpoints import Endpoint, Node
from ottla.broker.groups.settings import offsets_topic_plan
from ottla.broker.metadata import CoordinationState
from ottla.broker.partition.partition import Partition
from ottla.broker.topics.topic_configs import TopicConfigs
from ottla.broker.transactions.settings import STATE_TOPIC, state_topic_plan
from ottla.coordination.port import UnavailableError
from ottla.machines.controller.broker_requests import BrokerStart
from ottla.machines.controller.image_changes import ImageChanges
from ottla.machines.controller.rules import RuleBook
from ottla.machines.controller.state import TopicState
from ottla.machines.groups.placement import OFFSETS_TOPIC
from ottla.ports import Timer
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import LogKey, PartitionIndex, TopicId

ISR_CHECK_MS = 250.0


class ClusterMetadata(MembershipEvents):
    """Implements `metadata.Metadata` for a broker of a cluster.

    Call `recover`, start the broker, and call `open` before it listens and `join` afterwards. It has one method for
    each question or event of the port, of the membership and of the life cycle.
    """

    brokers_may_join = True

    def __init__(
        self, context: BrokerContext, membership: Membership, cluster_id: str, *, allow_shared_machine: bool
    ) -> None:
        self._context = context
        self._clock = context.clock
        self.cluster_id = cluster_id
        self.membership = membership
        self.entries = StoredEntries(membership.store)
        self.rules = RuleBook(context.static_config.given)
        self.controller = ControllerLoop(membership, context.clock, self.rules)
        self.partition_admin = ControllerPartitionAdmin(
            membership, self.controller, self.rules, allow_shared_machine=allow_shared_machine
        )
        configs = TopicConfigs(context)
        self._placing = TopicPlacement(context, membership, self.rules, configs)
        self._roles = self._placing.roles
        self._clean_up = CleanUp(context.node_id, membership, self._placing)
        self.admin = ClusterAdmin(
            context, configs, membership, self._clean_up.creating, allow_shared_machine=allow_shared_machine
        )
        self.acl_admin = ClusterAclAdmin(membership)
        authorizer = context.authorizer
        self._acls = AclFollower(authorizer, membership) if authorizer is not None else None
        self._rebalancing = LeaderRebalance(self.controller, membership, context.clock, context.static_config)
        self._growth = ReplicaGrowth(
            membership,
            self.controller,
            self.partition_admin,
            context.clock,
            self._internal_topics,
            allow_shared_machine=allow_shared_machine,
        )
        self._timer: Timer | None = None
        self._last_epoch: int | None = None
        """The epoch in which this broker left."""

    def _internal_topics(self) -> dict[str, TopicPlan]:
        config = self._context.config
        return {OFFSETS_TOPIC: offsets_topic_plan(config), STATE_TOPIC: state_topic_plan(config)}

    # -- life cycle -------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Recovers the logs that the cluster places on this broker."""
        context = self._context
        await self.membership.load()
        self._placing.apply_dynamic_configs()
        if self._acls is not None:
            self._acls.load()
        wanted = [(key, self._placing.config_of(topic)) for key, topic in self._hosted()]
        on_disk = [each for each in wanted if each[1].durability is not Durability.MEMORY]
        context.store.recover(on_disk, self._clean_up.deleted_topics())

    def _hosted(self) -> Iterable[tuple[LogKey, TopicState]]:
        """Iterates over the logs that the image places on this broker."""
        image = self.membership.image
        for key in image.hosted_by(self._context.node_id):
            topic = image.topic(key.topic_id)
            if topic is not None:
                yield LogKey(key.topic_id, PartitionIndex(key.partition)), topic

    def open(self) -> None:
        """Makes topics visible to clients. The server listens only afterwards: a broker that does not know the topics
        yet would report them as unknown."""
        self._placing.is_running = True
        self._placing.place_all()

    async def join(self, start: BrokerStart) -> None:
        """Registers the broker and starts its periodic work. The server already listens: other brokers connect as soon
        as they see the registration."""
        self.membership.events += [self, self.controller]
        self.membership.failed_logs = self._roles.failures.failed_logs
        self.membership.damaged_classes = self._roles.damaged_classes
        self.controller.start()
        self._rebalancing.start()
        self._growth.start()
        await self.membership.join(replace(start, process_id=uuid4().hex))
        self._context.store.forget_lost_entries()
        self._arm()

    def damaged_classes(self) -> list[Durability]:
        """Returns the durability classes in which recovery found damage, so that data may be missing."""
        damaged = {log.config.durability for log in self._context.file_logs() if log.damages or log.failed is not None}
        if self._context.store.may_lack_entries:
            damaged.add(Durability.DISK)  # leaves every ISR and fetches from the leaders (safety: journal-blocks)
        return sorted(damaged)

    async def hand_over(self) -> None:
        await hand_over(self._context, self.membership)

    async def leave(self) -> None:
        self._last_epoch = self.membership.epoch
        self._placing.is_running = False
        if self._timer is not None:
            self._timer.cancel()
        self._rebalancing.stop()
        await self._growth.stop()
        await self._clean_up.stop()
        await self.controller.stop()
        await self._roles.stop()
        await self.membership.leave()

    def note_clean_shutdown(self) -> None:
        if self._last_epoch is not None:
            note_clean_shutdown(self._context.shared.disk.files, self._context.log_dir, self._last_epoch)

    async def abandon(self) -> None:
        await self._roles.fetchers.stop()

    # -- brokers and topics -----------------------------------------------------------------------------------

    @property
    def controller_id(self) -> int:
        found = self.membership.image.controller
        return found.value.broker_id if found is not None else -1

    def nodes(self, listener: str | None = None) -> list[Node]:
        registrations = sorted(self.membership.image.registrations(), key=lambda found: found.broker_id)
        addressed = [(found, found.address_at(listener)) for found in registrations]
        return [
            Node(found.broker_id, *address, found.rack, found.wal_port)
            for found, address in addressed
            if address is not None
        ]

    def peer_address(self, broker_id: int) -> Endpoint | None:
        registration = self.membership.image.registration(broker_id)
        return None if registration is None else Endpoint(*registration.inter_broker_address)

    async def refresh(self) -> Refused | None:
        try:
            await self.membership.refresh()
        except UnavailableError as error:
            return Refused(ErrorCode.leader_not_available, f"the coordination store is not available: {error}")
        return None

    def sees_all_topics(self) -> bool:
        return not self.membership.image.unreadable()

    async def reserve_producer_ids(self, count: int) -> int | Refused:
        return await reserve_producer_ids(self.membership.store, count)

    def coordination_state(self) -> CoordinationState:
        membership = self.membership
        is_controller = self.controller_id == self._context.node_id
        reassigning_count = sum(1 for _ in membership.image.reassigning()) if is_controller else 0
        return CoordinationState(membership.store, membership.is_alive, membership.revision, reassigning_count)

    # -- replication ------------------------------------------------------------------------------------------

    def check_lease(self) -> None:
        self.membership.check_deadline()

    def knows_replica(self, broker_id: int, broker_epoch: int) -> bool:
        registration = self.membership.image.registration(broker_id)
        return registration is not None and registration.epoch == broker_epoch

    def preferred_read_replica(self, partition: Partition, rack: str, offset: int) -> int | None:
        return preferred_read_replica(self.membership.image, self._context.node_id, partition, rack, offset)

    def on_follower_heard(self, partition: Partition) -> None:
        self._roles.on_follower_heard(partition)

    def on_synced_end(
        self, topic_id: TopicId, index: int, leader_epoch: int, broker_id: int, broker_epoch: int, end: int
    ) -> None:
        topic = self._context.topics.by_id(topic_id)
        partition = topic.partition(index) if topic is not None else None
        if partition is not None and partition.leading is not None and partition.leader_epoch == leader_epoch:
            self._roles.on_synced_end(partition, broker_id, broker_epoch, end)

    # -- changes of the image ---------------------------------------------------------------------------------

    def on_registered(self) -> None:
        self._placing.place_all()

    def on_lease_lost(self) -> None:
        self._placing.stand_by()

    def on_reloaded(self) -> None:
        if self._acls is not None:
            self._acls.load()
        self._placing.place_all()

    def on_touched(self, touched: ImageChanges) -> None:
        if touched.acls and self._acls is not None:
            self._acls.follow(touched.acls)
        self._placing.place(touched)

    # -- time -------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Does nothing: the cluster's periodic work has a timer of its own, which starts when the broker joins."""

    def _arm(self) -> None:
        self._timer = self._clock.call_later(ISR_CHECK_MS, self._tick)

    def _tick(self) -> None:
        try:
            self._roles.check_isrs()
            self._clean_up.check()
            self._roles.check_damage()
        finally:
            if self._placing.is_running:
                self._arm()

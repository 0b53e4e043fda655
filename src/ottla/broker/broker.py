"""The broker: topics and partitions on top of logs, as the handlers use it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from uuid import UUID, uuid4

from ottla.broker.blocking_jobs import run_blocking
from ottla.broker.groups.groups import Groups
from ottla.broker.partition.backlog import Backlog, PartitionBacklog
from ottla.broker.partition.fetch_sessions import FetchSessions
from ottla.broker.partition.partition import Partition
from ottla.broker.partition.replication_throttles import ReplicationThrottles
from ottla.broker.partition.transaction_verification import NoVerification, Verifier
from ottla.broker.partition.waits import Deadlines, Wakeups
from ottla.broker.request_meters import RequestMeters
from ottla.broker.storage.any_log import AnyLog
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.log_resources import LogResources
from ottla.broker.storage.memory_log import MemoryLog
from ottla.broker.storage.startup.corrupt_epochs import distrust_epochs_above
from ottla.broker.topics.catalog import Catalog, CatalogState
from ottla.broker.topics.housekeeping import Housekeeping
from ottla.broker.topics.log_store import LogStore
from ottla.broker.topics.topic_admin import Assignment, TopicAdmin
from ottla.broker.topics.topics import Topic, Topics
from ottla.broker.traffic import Traffic
from ottla.broker.transactions.settings import STATE_TOPIC
from ottla.broker.transactions.transactions import Transactions
from ottla.broker.transactions.verification import CoordinatorVerifier
from ottla.machines.groups.placement import OFFSETS_TOPIC
from ottla.ports import Clock
from ottla.protocol.model.broker_config import RACK_AWARE_SELECTOR, BrokerConfig
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import LogKey, PartitionIndex, TopicId
from ottla.protocol.model.topic_config import TopicConfig

if TYPE_CHECKING:
    from ottla.broker.cluster.cluster import Cluster
    from ottla.machines.controller.broker_requests import BrokerStart

T = TypeVar("T")
PRODUCER_ID_BLOCK = 1000


class Endpoint(NamedTuple):
    """A host and port to connect to."""

    host: str
    port: int


class Node(NamedTuple):
    """A broker in the metadata for clients."""

    id: int
    host: str
    port: int
    rack: str | None
    wal_port: int = 0
    """Port of its append stream; 0 if it has none."""


@dataclass(slots=True)
class ProducerIds:
    """Hands out producer ids from a block that was reserved durably, so that no id is given out twice."""

    next_id: int = 0
    block_end: int = 0
    reserving: asyncio.Lock = field(default_factory=asyncio.Lock)


class Broker:
    """One broker, alone or in a cluster.

    It owns the topics, the coordinators and the periodic work. `cluster` is None on a broker that is alone.
    """

    def __init__(
        self,
        config: BrokerConfig,
        shared: LogResources,
        store: LogStore,
        catalog: Catalog,
        log_dir: str,
        new_id: Callable[[], UUID] = uuid4,
    ) -> None:
        self.config = config
        self.static_config = config
        self.shared = shared
        self.store = store
        self.catalog = catalog
        self.log_dir = log_dir
        self.new_id = new_id
        self.clock: Clock = shared.clock
        self.node_id = config.node_id
        self.endpoint = Endpoint("127.0.0.1", 0)
        """The address that clients are told to connect to."""
        self.inter_broker_endpoint: Endpoint | None = None
        """The address for other brokers, if it differs from the one for clients."""
        self.wal_port = 0
        self.cluster_id = ""
        self.leader_epoch = 0
        self.topics = Topics()
        self.deadlines = Deadlines(self.clock)
        self.wakeups = Wakeups(self.clock)
        self.backlog = Backlog(self.clock, config.unacknowledged_max_bytes, lambda: shared.tail.is_filling)
        self.fetch_sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots,
            self.clock.monotonic_ms,
            lambda: self.new_id().int & 0x7FFFFFFF,
        )
        self.throttles = ReplicationThrottles(self.clock, config)
        self.traffic = Traffic.none()
        self.meters = RequestMeters()
        self.cluster: Cluster | None = None
        self.stopping = False
        self.dynamic_overrides: dict[str, str] = {}
        """All dynamic settings that apply to this broker."""
        self.admin = TopicAdmin(self)
        self.housekeeping = Housekeeping(self)
        self.groups = Groups(self)
        self.transactions = Transactions(self)
        self._coordinators_verify = CoordinatorVerifier(self)
        is_verified = config.transaction_partition_verification_enable
        self.verifier: Verifier = self._coordinators_verify if is_verified else NoVerification()
        self._producer_ids = ProducerIds()

    # -- life cycle ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Recovers all state from disk. Blocking; the broker can serve afterwards."""
        self.store.hold_reserve()
        state = self.catalog.load()
        self.cluster_id = state.cluster_id
        self.dynamic_overrides = dict(state.dynamic_configs)
        self.admin.apply_dynamic_configs()
        # Every start takes a new epoch, so that records lost in a crash are never confused with those that follow
        # (safety: one-history).
        self.leader_epoch = self.store.with_reserve(self.catalog.begin_incarnation)
        known = [(record, self.admin.config_for(record.overrides)) for record in state.topics]
        self.store.recover(
            (
                (LogKey(record.id, PartitionIndex(index)), config)
                for record, config in known
                if config.durability is not Durability.MEMORY
                for index in range(record.partition_count)
            ),
            state.deleted,
        )
        if state.deleted:
            with contextlib.suppress(OSError):  # the next start retries
                self.store.with_reserve(lambda: self.catalog.forget_deleted(state.deleted))
        for record, config in known:
            topic = Topic(record.name, record.id, config, dict(record.overrides), record.created_ms)
            self.add_partitions(topic, record.partition_count, state)
            self.topics.add(topic)
        self.housekeeping.reserve_offsets_blocking()
        self.housekeeping.start()

    async def start_in(self, cluster: Cluster, admin: TopicAdmin) -> None:
        """Recovers the partitions that the cluster places on this broker. The server listens only afterwards: a broker
        that does not know the topics yet would report them as unknown."""
        self.cluster, self.admin = cluster, admin
        await cluster.membership.load()
        cluster.apply_dynamic_configs()
        wanted = [(key, self.admin.config_for(topic.configs)) for key, topic in cluster.hosted()]
        on_disk = [each for each in wanted if each[1].durability is not Durability.MEMORY]
        self.store.recover(on_disk, cluster.clean_up.deleted_topics())
        self.housekeeping.start()
        cluster.open()

    async def join(self, start: BrokerStart) -> None:
        """Registers with the cluster. The server already listens: other brokers connect as soon as they see the
        registration."""
        assert self.cluster is not None
        await self.cluster.join(start)

    def begin_shutdown(self) -> None:
        """Answers parked requests with the data there is; new requests are not parked."""
        self.stopping = True
        self._stop_coordinators()
        for partition in self.partitions():
            partition.watches.wake_fetches()

    async def stop(self) -> None:
        """Makes everything durable, so that the next start has nothing to replay. The server has already stopped."""
        self.begin_shutdown()
        if self.cluster is not None:
            await self.cluster.stop()
        self.housekeeping.stop()
        await self.housekeeping.flush_everything()
        self.abandon()

    def abandon(self) -> None:
        """Closes everything without flushing, which leaves the same state as a crash."""
        self._stop_coordinators()
        self.housekeeping.stop()
        self.store.close()

    def _stop_coordinators(self) -> None:
        self.groups.stop()
        self.transactions.stop()
        self._coordinators_verify.stop()

    # -- cluster -----------------------------------------------------------------------------------------------

    def check_lease(self) -> None:
        """Gives up all leaderships if the lease has expired, since other brokers may have taken over (safety: leases).
        Called before each request."""
        if self.cluster is not None:
            self.cluster.membership.check_deadline()

    def nodes(self) -> list[Node]:
        """Returns the live brokers."""
        if self.cluster is not None:
            return self.cluster.nodes()
        return [Node(self.node_id, *self.endpoint, self.config.broker_rack, self.wal_port)]

    def peer_address(self, broker_id: int) -> Endpoint | None:
        """Returns the address at which brokers reach a live broker, possibly this one."""
        if self.cluster is None:
            return (self.inter_broker_endpoint or self.endpoint) if broker_id == self.node_id else None
        found = self.cluster.peer_address(broker_id)
        return None if found is None else Endpoint(*found)

    @property
    def controller_id(self) -> int:
        """The id of the controller."""
        return self.node_id if self.cluster is None else self.cluster.controller_id

    def knows_replica(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether this is the live incarnation of another broker."""
        return self.cluster is not None and self.cluster.knows_replica(broker_id, broker_epoch)

    def preferred_read_replica(self, partition: Partition, rack: str, offset: int) -> int | None:
        """Returns the follower from which a consumer in this rack should read from this offset on, or None for this
        broker."""
        if self.cluster is None or self.config.replica_selector_class != RACK_AWARE_SELECTOR:
            return None
        return self.cluster.preferred_read_replica(partition, rack, offset)

    def on_follower_heard(self, partition: Partition) -> None:
        """Notes a fetch or report of a follower."""
        if self.cluster is not None:
            self.cluster.on_follower_heard(partition)

    def on_role(self, partition: Partition) -> None:
        """Notifies the coordinators that the partition may have another leader, another epoch, or no log any more."""
        self.groups.on_role(partition)
        self.transactions.on_role(partition)

    # -- topics and partitions ---------------------------------------------------------------------------------

    def partitions(self) -> Iterator[Partition]:
        """Iterates over all partitions on this broker."""
        for topic in self.topics:
            yield from topic.partitions

    def add_partitions(self, topic: Topic, total: int, state: CatalogState | None = None) -> None:
        """Opens partitions up to the total. `state` is given at start-up and holds the recovered reservations."""
        for index in range(len(topic.partitions), total):
            key = LogKey(topic.id, PartitionIndex(index))
            log = self._log_for(key, topic.config, state)
            topic.partitions.append(
                Partition(
                    topic,
                    index,
                    log,
                    node_id=self.node_id,
                    leader_epoch=self.leader_epoch,
                    wakeups=self.wakeups,
                    backlog=PartitionBacklog(self.backlog),
                )
            )
            distrust_epochs_above(log, self.leader_epoch)
            self.on_role(topic.partitions[-1])
        self.housekeeping.look_at(topic)

    def _log_for(self, key: LogKey, config: TopicConfig, state: CatalogState | None) -> AnyLog:
        if config.durability is Durability.MEMORY:
            # The content of a memory log is gone; it continues above every offset it may have assigned
            # (safety: memory-loss).
            reserved = state.reserved_offsets.get((key.topic_id, key.partition), 0) if state else 0
            return MemoryLog(self.shared, key, config, reserved)
        existing = self.store.logs.get(key)
        return existing if existing is not None else self.store.create(key, config)

    def file_logs(self) -> Iterator[FileLog]:
        return iter(self.store.logs.values())

    async def create_topic(
        self,
        name: str,
        partition_count: int,
        configs: Mapping[str, str],
        *,
        replication_factor: int = 1,
        assignment: Assignment | None = None,
        replicas_wanted: int = 0,
        validate_only: bool = False,
    ) -> Topic | Refused:
        """Creates a topic. An assignment lists the replicas of each partition and so determines both counts.

        `replicas_wanted` is the number to which the controller of a cluster raises a smaller replication factor.
        """
        if name in (OFFSETS_TOPIC, STATE_TOPIC):
            configs = {"cleanup.policy": "compact", **configs}
        return await self.admin.create_topic(
            name, partition_count, configs, replication_factor, validate_only, assignment, replicas_wanted
        )

    async def delete_topic(self, topic: Topic) -> Refused | None:
        """Deletes a topic."""
        return await self.admin.delete_topic(topic)

    async def create_partitions(
        self, topic: Topic, total: int, *, assignment: Assignment | None = None, validate_only: bool = False
    ) -> Refused | None:
        """Increases a topic's number of partitions. An assignment lists the replicas of each new partition."""
        if topic.name in (OFFSETS_TOPIC, STATE_TOPIC):
            what = "group" if topic.name == OFFSETS_TOPIC else "transactional id"
            why = f"The place of a {what} in {topic.name} depends on the number of its partitions, so it cannot grow."
            return Refused(ErrorCode.invalid_partitions, why)
        return await self.admin.create_partitions(topic, total, validate_only, assignment)

    async def alter_topic_configs(
        self, topic: Topic, overrides: Mapping[str, str], *, validate_only: bool = False
    ) -> Refused | None:
        """Replaces the overrides of a topic."""
        return await self.admin.alter_topic_configs(topic, overrides, validate_only)

    async def alter_broker_configs(
        self, overrides: Mapping[str, str], *, broker_name: str = "", validate_only: bool = False
    ) -> Refused | None:
        """Replaces dynamic broker settings; an empty name means those of all brokers."""
        return await self.admin.alter_broker_configs(overrides, validate_only, broker_name)

    async def ensure_topic(self, name: str) -> Topic | Refused:
        """Returns the topic, creating it if allowed, as a metadata request does in Kafka."""
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        if name == OFFSETS_TOPIC:
            return await self.groups.ensure_topic()
        if name == STATE_TOPIC:
            return await self.transactions.ensure_topic()
        if not self.config.auto_create_topics_enable:
            return Refused(ErrorCode.unknown_topic_or_partition, f"there is no topic '{name}'")
        if self.cluster is not None:
            # Another broker may have created it in the meantime.
            refused = await self.cluster.refresh()
            if refused is not None:
                return refused
            topic = self.topics.get(name)
            if topic is not None:
                return topic
        created = await self.create_topic(name, -1, {}, replication_factor=-1)
        if isinstance(created, Refused) and created.error is ErrorCode.topic_already_exists:
            return self.topics.get(name) or created
        return created

    # -- producer ids, disk space ------------------------------------------------------------------------------

    async def allocate_producer_id(self) -> int | Refused:
        """Returns a producer id that no other producer has."""
        ids = self._producer_ids
        async with ids.reserving:
            if ids.next_id >= ids.block_end:
                reserved = await self._reserve_producer_ids()
                if isinstance(reserved, Refused):
                    return reserved
                first = reserved
                ids.next_id, ids.block_end = first, first + PRODUCER_ID_BLOCK
            ids.next_id += 1
            return ids.next_id - 1

    async def _reserve_producer_ids(self) -> int | Refused:
        if self.cluster is not None:
            return await self.cluster.reserve_producer_ids(PRODUCER_ID_BLOCK)
        try:
            return await self.on_catalog(lambda: self.catalog.reserve_producer_ids(PRODUCER_ID_BLOCK))
        except OSError as error:
            return Refused(ErrorCode.kafka_storage_error, str(error))

    def on_catalog(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Runs a blocking catalog call. Calls run in order on a disk thread of their own."""
        return run_blocking(self.shared.disk.catalog_queue, job)

    def log_dir_free_bytes(self) -> int:
        return self.shared.disk.files.free_bytes(self.log_dir)

    def log_dir_total_bytes(self) -> int:
        return self.shared.disk.files.total_bytes(self.log_dir)

    def topic_by(self, key: str | UUID) -> Topic | None:
        """Returns the topic with this name or id."""
        return self.topics.get(key) if isinstance(key, str) else self.topics.by_id(TopicId(key))

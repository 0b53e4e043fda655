"""The metadata of a broker without a cluster, kept in a catalog on its own disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ottla.broker.context import BrokerContext
from ottla.broker.endpoints import Endpoint, Node
from ottla.broker.partition.backlog import PartitionBacklog
from ottla.broker.partition.partition import Partition
from ottla.broker.standalone.acl_admin import StandaloneAclAdmin
from ottla.broker.standalone.admin import StandaloneAdmin
from ottla.broker.standalone.catalog import Catalog, CatalogAccess, CatalogState
from ottla.broker.standalone.entries import CatalogEntries
from ottla.broker.standalone.offset_reservations import OffsetReservations
from ottla.broker.storage.any_log import AnyLog
from ottla.broker.storage.memory_log import MemoryLog
from ottla.broker.storage.startup.corrupt_epochs import distrust_epochs_above
from ottla.broker.topics.topic_configs import TopicConfigs
from ottla.broker.topics.topics import Topic
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import LogKey, PartitionIndex, TopicId
from ottla.protocol.model.topic_config import TopicConfig

if TYPE_CHECKING:
    from ottla.broker.metadata import Answers, CoordinationState, Place
    from ottla.machines.controller.partition_requests import Reassignment


class StandaloneMetadata:
    """Implements `metadata.Metadata` for a single broker, which leads everything. Call `recover` before use."""

    brokers_may_join = False

    def __init__(self, context: BrokerContext, catalog: Catalog) -> None:
        self._context = context
        self.catalog = CatalogAccess(catalog, context.shared.disk.catalog_queue)
        self.entries = CatalogEntries(self.catalog)
        self._configs = TopicConfigs(context)
        self._reservations = OffsetReservations(context, self.catalog)
        self.admin = StandaloneAdmin(context, self._configs, self.catalog, self._reservations, self._open_partitions)
        self.partition_admin = StandalonePartitionAdmin()
        self.acl_admin = StandaloneAclAdmin(context, self.catalog)
        self.cluster_id = ""
        self._leader_epoch = 0

    def recover(self) -> None:
        """Recovers all topics and their logs from disk. Blocking; the broker can serve afterwards."""
        context, catalog = self._context, self.catalog.blocking
        context.store.hold_reserve()
        state = catalog.load()
        self.cluster_id = state.cluster_id
        self.entries.load(state.entries)
        self._configs.apply_dynamic(state.dynamic_configs)
        self.acl_admin.load(state.entries)
        # Every start takes a new epoch, so that records lost in a crash are never confused with those that follow
        # (safety: one-history).
        self._leader_epoch = context.store.with_reserve(catalog.begin_incarnation)
        known = [(record, self._configs.parse_stored(record.overrides)) for record in state.topics]
        context.store.recover(
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
                context.store.with_reserve(lambda: catalog.forget_deleted(state.deleted))
        for record, config in known:
            topic = Topic(record.name, record.id, config, dict(record.overrides), record.created_ms)
            self._open_partitions(topic, record.partition_count, state)
            context.topics.add(topic)
        self._reservations.reserve_blocking()

    def _open_partitions(self, topic: Topic, total: int, state: CatalogState | None = None) -> None:
        """Opens partitions up to the total. `state` is given at start-up and holds the recovered reservations."""
        context = self._context
        for index in range(len(topic.partitions), total):
            key = LogKey(topic.id, PartitionIndex(index))
            log = self._log_for(key, topic.config, state)
            partition = Partition(
                topic,
                index,
                log,
                node_id=context.node_id,
                leader_epoch=self._leader_epoch,
                wakeups=context.wakeups,
                backlog=PartitionBacklog(context.backlog),
            )
            topic.partitions.append(partition)
            distrust_epochs_above(log, self._leader_epoch)
            context.events.on_role(partition)
        context.events.on_configured(topic)

    def _log_for(self, key: LogKey, config: TopicConfig, state: CatalogState | None) -> AnyLog:
        if config.durability is Durability.MEMORY:
            # The content of a memory log is gone; it continues above every offset it may have assigned
            # (safety: memory-loss).
            reserved = state.reserved_offsets.get((key.topic_id, key.partition), 0) if state else 0
            return MemoryLog(self._context.shared, key, config, reserved)
        store = self._context.store
        existing = store.logs.get(key)
        return existing if existing is not None else store.create(key, config)

    # -- brokers and topics -----------------------------------------------------------------------------------

    @property
    def controller_id(self) -> int:
        return self._context.node_id

    def nodes(self, listener: str | None = None) -> list[Node]:
        context = self._context
        endpoint = context.endpoints.clients if listener is None else context.endpoints.of_listener(listener)
        if endpoint is None:
            return []
        return [Node(context.node_id, *endpoint, context.config.broker_rack, context.endpoints.wal_port)]

    def peer_address(self, broker_id: int) -> Endpoint | None:
        return self._context.endpoints.for_brokers if broker_id == self._context.node_id else None

    async def refresh(self) -> Refused | None:
        return None

    def sees_all_topics(self) -> bool:
        return True

    async def reserve_producer_ids(self, count: int) -> int | Refused:
        try:
            return await self.catalog.run(lambda catalog: catalog.reserve_producer_ids(count))
        except OSError as error:
            return Refused(ErrorCode.kafka_storage_error, str(error))

    # -- replication: there is none ---------------------------------------------------------------------------

    def check_lease(self) -> None: ...

    def knows_replica(self, broker_id: int, broker_epoch: int) -> bool:
        return False

    def preferred_read_replica(self, partition: Partition, rack: str, offset: int) -> int | None:
        return None

    def on_follower_heard(self, partition: Partition) -> None: ...

    def on_synced_end(
        self, topic_id: TopicId, index: int, leader_epoch: int, broker_id: int, broker_epoch: int, end: int
    ) -> None: ...

    # -- life cycle -------------------------------------------------------------------------------------------

    def tick(self) -> None:
        self._reservations.check()

    def coordination_state(self) -> CoordinationState | None:
        return None

    async def hand_over(self) -> None: ...

    async def leave(self) -> None: ...

    def note_clean_shutdown(self) -> None:
        """Does nothing: recovery reads how far each log is flushed."""

    async def abandon(self) -> None: ...


class StandalonePartitionAdmin:
    """A `PartitionAdmin` for a single broker, which has nothing to move or elect."""

    async def reassign(self, targets: Mapping[Place, Sequence[int] | None]) -> Answers | Refused:
        why = "This broker runs standalone, so there is no other broker to move replicas to."
        return dict.fromkeys(targets, Refused(ErrorCode.invalid_replica_assignment, why))

    async def elect(self, places: Iterable[Place] | None, *, unclean: bool) -> Answers | Refused:
        not_needed = Refused(ErrorCode.election_not_needed, "This broker runs standalone and leads every partition.")
        return dict.fromkeys(places or (), not_needed)

    def reassignments(self, places: Iterable[Place] | None) -> Mapping[Place, Reassignment]:
        return {}

"""Creates, changes and deletes the topics of a single broker. A change is durable in the catalog before it becomes
visible."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from ottla.broker.context import BrokerContext
from ottla.broker.standalone.catalog import CatalogAccess, TopicRecord
from ottla.broker.standalone.offset_reservations import OffsetReservations
from ottla.broker.storage.file_log import FileLog
from ottla.broker.topics.topic_admin import PARTITIONS_MAX, Assignment, TopicAdmin, TopicCreation, planned_layouts
from ottla.broker.topics.topic_configs import DURABILITY, TopicConfigs
from ottla.broker.topics.topics import Topic
from ottla.protocol.model.broker_config import with_overrides
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import TopicId
from ottla.protocol.model.topic_names import metric_name


class StandaloneAdmin(TopicAdmin):
    """Administers the topics and settings of a single broker."""

    has_cluster_defaults = False

    def __init__(
        self,
        context: BrokerContext,
        configs: TopicConfigs,
        catalog: CatalogAccess,
        reservations: OffsetReservations,
        open_partitions: Callable[[Topic, int], None],
    ) -> None:
        super().__init__(context, configs)
        self._catalog = catalog
        self._reservations = reservations
        self._open_partitions = open_partitions
        """Opens the partitions of a topic up to this number."""
        self._creating: dict[str, str] = {}
        """Names that are being created and are not visible yet, by their names in metrics."""
        self._changing = asyncio.Lock()
        """Serialises changes of topics: each is based on the catalog state that the previous one left."""
        self._unsaved: list[tuple[TopicRecord, asyncio.Future[None]]] = []
        self._saving = False
        self._gone: list[TopicId] = []
        """Deleted topics without files; the catalog forgets them at the next deletion."""

    # -- create -----------------------------------------------------------------------------------------------

    async def _create_topic(self, creation: TopicCreation) -> Topic | Refused:
        context, name = self._context, creation.name
        refused = context.topics.check_new_name(name) or self._check_counts(creation)
        if refused is None and creation.assignment is not None:
            refused = self._check_assignment(creation.assignment)
        if refused is None and (similar := self._creating.get(metric_name(name))) is not None:
            error = ErrorCode.topic_already_exists if similar == name else ErrorCode.invalid_topic_exception
            refused = Refused(error, f"Topic '{similar}' is being created.")
        config = refused or self._configs.parse_new(name, creation.configs)
        if isinstance(config, Refused):
            return config
        count = context.config.num_partitions if creation.partition_count == -1 else creation.partition_count
        # The durability class is fixed at creation (safety: topic-identity): a broker with another default must not
        # change it.
        overrides = {**creation.configs, DURABILITY: config.durability.value}
        record = TopicRecord(name, self._new_id(), count, overrides, context.clock.now_ms())
        topic = Topic(name, record.id, config, overrides, record.created_ms)
        if creation.validate_only:
            topic.spread = planned_layouts([(context.node_id,)] * count)
            return topic
        self._creating[metric_name(name)] = name
        try:
            await self._save(record)
            self._open_partitions(topic, count)
            await self._reserve_offsets(topic)
        except OSError as error:
            return Refused(ErrorCode.kafka_storage_error, str(error))
        finally:
            del self._creating[metric_name(name)]
        context.topics.add(topic)
        context.events.on_topics_changed()
        return topic

    def _check_counts(self, creation: TopicCreation) -> Refused | None:
        if creation.partition_count != -1 and not 1 <= creation.partition_count <= PARTITIONS_MAX:
            return Refused(
                ErrorCode.invalid_partitions, f"Number of partitions must be between 1 and {PARTITIONS_MAX}."
            )
        if creation.replication_factor not in (-1, 1):
            error = ErrorCode.invalid_replication_factor
            why = f"Replication factor: {creation.replication_factor} larger than available brokers: 1."
            return Refused(error, why)
        return None

    def _check_assignment(self, assignment: Assignment) -> Refused | None:
        """A single broker allows only one placement."""
        me = (self._context.node_id,)
        for replicas in assignment:
            if replicas != me:
                return Refused(
                    ErrorCode.invalid_replica_assignment,
                    f"The manual partition assignment places a partition on the brokers {list(replicas)}, but broker"
                    f" {self._context.node_id} is the only one.",
                )
        return None

    async def _save(self, record: TopicRecord) -> None:
        """Saves a topic. Topics that are created concurrently share one catalog transaction."""
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsaved.append((record, saved))
        if not self._saving:
            self._saving = True
            try:
                while self._unsaved:
                    await self._save_all()
            finally:
                self._saving = False
        await saved

    async def _save_all(self) -> None:
        await asyncio.sleep(0)
        batch, self._unsaved = self._unsaved, []
        try:
            await self._catalog.run(lambda catalog: catalog.put_topics([record for record, _ in batch]))
        except OSError as error:
            for _, saved in batch:
                saved.set_exception(OSError(*error.args))
        else:
            for _, saved in batch:
                saved.set_result(None)

    # -- change -----------------------------------------------------------------------------------------------

    async def _create_partitions(
        self, topic: Topic, total: int, assignment: Assignment | None, *, validate_only: bool
    ) -> Refused | None:
        current = len(topic.partitions)
        if total <= current:
            return Refused(
                ErrorCode.invalid_partitions,
                f"The topic {topic.name} currently has {current} partition(s); {total} would not be an increase.",
            )
        if total > PARTITIONS_MAX:
            return Refused(ErrorCode.invalid_partitions, f"Number of partitions must be at most {PARTITIONS_MAX}.")
        refused = self._check_assignment(assignment or ())
        if refused is not None or validate_only:
            return refused
        async with self._changing:
            if total <= len(topic.partitions):
                return Refused(ErrorCode.invalid_partitions, f"The topic {topic.name} has {total} partitions by now.")
            refused = await self._put(topic, total, topic.overrides)
            if refused is None:
                self._open_partitions(topic, total)
                self._context.topics.changed()
                self._context.events.on_topics_changed()
        await self._reserve_offsets()
        return refused

    async def _reserve_offsets(self, new: Topic | None = None) -> None:
        """Reserves offsets for memory logs, which refuse records until then. On failure, a later tick retries."""
        with contextlib.suppress(OSError):
            await self._reservations.reserve(new)

    async def _store_configs(self, topic: Topic, overrides: Mapping[str, str]) -> Refused | None:
        async with self._changing:
            refused = await self._put(topic, len(topic.partitions), overrides)
            if refused is None:
                self._configs.apply(topic, overrides)
        return refused

    def dynamic_configs(self, broker_name: str) -> Mapping[str, str]:
        """Returns the dynamic settings. For a single broker, those of one and of all brokers are the same."""
        return self._context.dynamic_overrides

    async def alter_broker_configs(
        self, overrides: Mapping[str, str], *, broker_name: str = "", validate_only: bool = False
    ) -> Refused | None:
        """Replaces the dynamic settings of the broker."""
        merged = with_overrides(self._context.static_config, overrides)
        if isinstance(merged, Refused):
            return merged
        if validate_only:
            return None
        kept = dict(overrides)
        try:
            await self._catalog.run(lambda catalog: catalog.put_dynamic_configs(kept))
        except OSError as error:
            return Refused(ErrorCode.kafka_storage_error, str(error))
        self._configs.apply_dynamic(kept)
        return None

    async def _put(self, topic: Topic, partition_count: int, overrides: Mapping[str, str]) -> Refused | None:
        if self._context.topics.by_id(topic.id) is None:
            return Refused(ErrorCode.unknown_topic_or_partition, f"Topic '{topic.name}' was deleted.")
        record = TopicRecord(topic.name, topic.id, partition_count, dict(overrides), topic.created_ms)
        try:
            # Use the reserve: a shorter retention is one way to make room on a full disk.
            store = self._context.store
            await self._catalog.run(lambda catalog: store.with_reserve(lambda: catalog.put_topic(record)))
        except OSError as error:
            return Refused(ErrorCode.kafka_storage_error, str(error))
        return None

    # -- delete -----------------------------------------------------------------------------------------------

    async def delete_topic(self, topic: Topic) -> Refused | None:
        """Deletes a topic and, in the background, its logs."""
        async with self._changing:
            return await self._delete(topic)

    async def _delete(self, topic: Topic) -> Refused | None:
        context = self._context
        if context.topics.by_id(topic.id) is None:
            return Refused(ErrorCode.unknown_topic_or_partition)
        gone, self._gone = self._gone, []
        try:
            # Use the reserve: deleting topics is how an administrator makes room on a full disk.
            await self._catalog.run(
                lambda catalog: context.store.with_reserve(lambda: catalog.delete_topic(topic.id, gone))
            )
        except OSError as error:
            self._gone += gone
            return Refused(ErrorCode.kafka_storage_error, str(error))
        context.topics.remove(topic)
        self._remove_logs(topic)
        context.events.on_topics_changed(deleted=[topic.name])
        return None

    def _remove_logs(self, topic: Topic) -> None:
        left = len(topic.partitions)

        def gone() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self._gone.append(topic.id)

        for partition in topic.partitions:
            partition.close()
            self._context.events.on_role(partition)
            log = partition.log
            if isinstance(log, FileLog):
                self._context.store.delete(log, gone)
            else:
                log.close()
                gone()

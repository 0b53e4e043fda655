"""Creates, changes and deletes topics. A change is durable in the catalog before it becomes visible."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from ottla.broker.partition.layout import Layout
from ottla.broker.storage.file_log import FileLog
from ottla.broker.topics.catalog import TopicRecord
from ottla.broker.topics.topics import INTERNAL_TOPICS, Topic
from ottla.protocol.model.broker_config import with_overrides
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import TopicId
from ottla.protocol.model.topic_config import TopicConfig, parse_topic_config
from ottla.protocol.model.topic_names import metric_name

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

DURABILITY = "ottla.durability"
PARTITIONS_MAX = 10_000
"""Maximum number of partitions of a topic: each partition costs a file and an entry in every metadata reply."""
Assignment = Sequence[tuple[int, ...]]
"""The brokers of each partition's replicas, as requested by an administrator. The first is the preferred leader."""


def planned_layouts(assignment: Assignment) -> list[Layout]:
    """Returns the layouts that a topic would have, for a request that only validates."""
    return [Layout(index, replicas[0], 0, replicas, replicas) for index, replicas in enumerate(assignment)]


class TopicAdmin:
    """Administers the topics and settings of a single broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._creating: dict[str, str] = {}
        """Names that are being created and are not visible yet, by their names in metrics."""
        self._changing = asyncio.Lock()
        """Serialises changes of topics: each is based on the catalog state that the previous one left."""
        self._unsaved: list[tuple[TopicRecord, asyncio.Future[None]]] = []
        self._saving = False
        self._gone: list[TopicId] = []
        """Deleted topics without files; the catalog forgets them at the next deletion."""

    # -- configuration ----------------------------------------------------------------------------------------

    def broker_defaults(self) -> Mapping[str, str]:
        """Returns the settings that topics inherit from the broker."""
        return {**self._broker.static_config.given, **self._broker.dynamic_overrides}

    def config_for(self, overrides: Mapping[str, str]) -> TopicConfig:
        """Parses overrides that were accepted earlier. Raises ValueError if this version no longer supports a
        setting."""
        config = parse_topic_config(overrides, self.broker_defaults())
        if isinstance(config, Refused):
            raise ValueError(f"the catalog holds a topic configuration that is not valid: {config.message}")
        return config

    def apply_dynamic_configs(self) -> None:
        """Puts the dynamic settings into effect for the broker and its topics."""
        broker = self._broker
        merged = with_overrides(broker.static_config, broker.dynamic_overrides)
        if isinstance(merged, Refused):
            raise ValueError(f"the catalog holds a broker configuration that is not valid: {merged.message}")
        broker.config = merged
        broker.throttles.use_rates(merged)
        for topic in broker.topics:
            self.use_config(topic, topic.overrides)

    def use_config(self, topic: Topic, overrides: Mapping[str, str]) -> None:
        """Puts new overrides into effect for a topic and its logs."""
        topic.config = self.config_for(overrides)
        topic.overrides = dict(overrides)
        for partition in topic.partitions:
            partition.log.config = topic.config
        self._broker.housekeeping.look_at(topic)

    # -- create -----------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partition_count: int,
        configs: Mapping[str, str],
        replication_factor: int,
        validate_only: bool,
        assignment: Assignment | None = None,
        replicas_wanted: int = 0,
    ) -> Topic | Refused:
        """Creates a topic, or only validates the request."""
        broker = self._broker
        refused = broker.topics.check_new_name(name) or self._check_counts(partition_count, replication_factor)
        if refused is None and assignment is not None:
            refused = self._check_assignment(assignment)
        if refused is None and (similar := self._creating.get(metric_name(name))) is not None:
            error = ErrorCode.topic_already_exists if similar == name else ErrorCode.invalid_topic_exception
            refused = Refused(error, f"Topic '{similar}' is being created.")
        config = refused or self._parse_new(name, configs)
        if isinstance(config, Refused):
            return config
        count = broker.config.num_partitions if partition_count == -1 else partition_count
        # The durability class is fixed at creation (safety: topic-identity): a broker with another default must not
        # change it.
        overrides = {**configs, DURABILITY: config.durability.value}
        record = TopicRecord(name, self._new_id(), count, overrides, broker.clock.now_ms())
        topic = Topic(name, record.id, config, overrides, record.created_ms)
        if validate_only:
            topic.spread = planned_layouts([(broker.node_id,)] * count)
            return topic
        self._creating[metric_name(name)] = name
        try:
            await self._save(record)
            broker.add_partitions(topic, count)
            await self._reserve_offsets(topic)
        except OSError as error:
            return Refused(ErrorCode.kafka_storage_error, str(error))
        finally:
            del self._creating[metric_name(name)]
        broker.topics.add(topic)
        broker.groups.on_topics_changed()
        return topic

    def _parse_new(self, name: str, configs: Mapping[str, str]) -> TopicConfig | Refused:
        """Internal topics are always `disk` (safety: topic-identity), whatever the broker's default is."""
        if name not in INTERNAL_TOPICS:
            return parse_topic_config(configs, self.broker_defaults())
        if configs.get(DURABILITY, "").strip() in {each.value for each in Durability if each is not Durability.DISK}:
            return Refused(
                ErrorCode.invalid_config,
                f"'{name}' is an internal topic, and those are always of the class disk; leave ottla.durability out",
            )
        return parse_topic_config({DURABILITY: Durability.DISK.value, **configs}, self.broker_defaults())

    def _check_counts(self, partition_count: int, replication_factor: int) -> Refused | None:
        if partition_count != -1 and not 1 <= partition_count <= PARTITIONS_MAX:
            return Refused(
                ErrorCode.invalid_partitions, f"Number of partitions must be between 1 and {PARTITIONS_MAX}."
            )
        if replication_factor not in (-1, 1):
            error = ErrorCode.invalid_replication_factor
            return Refused(error, f"Replication factor: {replication_factor} larger than available brokers: 1.")
        return None

    def _check_assignment(self, assignment: Assignment) -> Refused | None:
        """A single broker allows only one placement."""
        me = (self._broker.node_id,)
        for replicas in assignment:
            if replicas != me:
                return Refused(
                    ErrorCode.invalid_replica_assignment,
                    f"The manual partition assignment places a partition on the brokers {list(replicas)}, but broker"
                    f" {self._broker.node_id} is the only one.",
                )
        return None

    def _new_id(self) -> TopicId:
        while True:
            # Kafka reserves the ids 0 and 1.
            candidate: UUID = self._broker.new_id()
            if candidate.int > 1:
                return TopicId(candidate)

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
            await self._broker.on_catalog(lambda: self._broker.catalog.put_topics([record for record, _ in batch]))
        except OSError as error:
            for _, saved in batch:
                saved.set_exception(OSError(*error.args))
        else:
            for _, saved in batch:
                saved.set_result(None)

    # -- change -----------------------------------------------------------------------------------------------

    async def create_partitions(
        self, topic: Topic, total: int, validate_only: bool, assignment: Assignment | None = None
    ) -> Refused | None:
        """Increases a topic's number of partitions to `total`."""
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
                self._broker.add_partitions(topic, total)
                self._broker.topics.changed()
                self._broker.groups.on_topics_changed()
        await self._reserve_offsets()
        return refused

    async def _reserve_offsets(self, new: Topic | None = None) -> None:
        """Reserves offsets for memory logs, which refuse records until then. On failure, housekeeping retries."""
        with contextlib.suppress(OSError):
            await self._broker.housekeeping.reserve_offsets(new)

    async def alter_topic_configs(
        self, topic: Topic, overrides: Mapping[str, str], validate_only: bool
    ) -> Refused | None:
        """Replaces the overrides of a topic."""
        overrides = {DURABILITY: topic.config.durability.value, **overrides}
        config = parse_topic_config(overrides, self.broker_defaults())
        if isinstance(config, Refused):
            return config
        if config.durability is not topic.config.durability:
            return Refused(
                ErrorCode.invalid_config,
                f"ottla.durability is fixed when a topic is created; '{topic.name}' is {topic.config.durability}",
            )
        return None if validate_only else await self._store_configs(topic, overrides)

    async def _store_configs(self, topic: Topic, overrides: Mapping[str, str]) -> Refused | None:
        async with self._changing:
            refused = await self._put(topic, len(topic.partitions), overrides)
            if refused is None:
                self.use_config(topic, overrides)
        return refused

    def dynamic_configs(self, broker_name: str) -> Mapping[str, str]:
        """Returns the dynamic settings of one broker, or of all brokers if the name is empty. For a single broker,
        these are the same."""
        return self._broker.dynamic_overrides

    async def alter_broker_configs(
        self, overrides: Mapping[str, str], validate_only: bool, broker_name: str = ""
    ) -> Refused | None:
        """Replaces the dynamic settings of the broker."""
        broker = self._broker
        merged = with_overrides(broker.static_config, overrides)
        if isinstance(merged, Refused):
            return merged
        if validate_only:
            return None
        kept = dict(overrides)
        try:
            await broker.on_catalog(lambda: broker.catalog.put_dynamic_configs(kept))
        except OSError as error:
            return Refused(ErrorCode.kafka_storage_error, str(error))
        broker.dynamic_overrides = kept
        self.apply_dynamic_configs()
        return None

    async def _put(self, topic: Topic, partition_count: int, overrides: Mapping[str, str]) -> Refused | None:
        if self._broker.topics.by_id(topic.id) is None:
            return Refused(ErrorCode.unknown_topic_or_partition, f"Topic '{topic.name}' was deleted.")
        record = TopicRecord(topic.name, topic.id, partition_count, dict(overrides), topic.created_ms)
        try:
            # Use the reserve: a shorter retention is one way to make room on a full disk.
            catalog, store = self._broker.catalog, self._broker.store
            await self._broker.on_catalog(lambda: store.with_reserve(lambda: catalog.put_topic(record)))
        except OSError as error:
            return Refused(ErrorCode.kafka_storage_error, str(error))
        return None

    # -- delete -----------------------------------------------------------------------------------------------

    async def delete_topic(self, topic: Topic) -> Refused | None:
        """Deletes a topic and, in the background, its logs."""
        async with self._changing:
            return await self._delete(topic)

    async def _delete(self, topic: Topic) -> Refused | None:
        broker = self._broker
        if broker.topics.by_id(topic.id) is None:
            return Refused(ErrorCode.unknown_topic_or_partition)
        gone, self._gone = self._gone, []
        try:
            # Use the reserve: deleting topics is how an administrator makes room on a full disk.
            await broker.on_catalog(
                lambda: broker.store.with_reserve(lambda: broker.catalog.delete_topic(topic.id, gone))
            )
        except OSError as error:
            self._gone += gone
            return Refused(ErrorCode.kafka_storage_error, str(error))
        broker.topics.remove(topic)
        self._remove_logs(topic)
        broker.groups.on_topics_changed(deleted=[topic.name])
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
            self._broker.on_role(partition)
            log = partition.log
            if isinstance(log, FileLog):
                self._broker.store.delete(log, gone)
            else:
                log.close()
                gone()

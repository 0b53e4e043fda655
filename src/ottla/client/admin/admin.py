"""The admin client: topics, partitions, configurations, records, groups, transactions, the cluster and its disks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.client.admin.calls import check
from ottla.client.admin.descriptions import (
    BROKER,
    SOURCES,
    TOPIC,
    BrokerDescription,
    ClusterDescription,
    ConfigEntry,
    LogDirDescription,
    LogDirPartition,
    TopicDescription,
    TopicListing,
    describe_partition,
)
from ottla.client.admin.groups import GroupAdmin
from ottla.client.admin.partitions import PartitionAdmin
from ottla.client.admin.transactions import TransactionAdmin
from ottla.client.admin.users import UserAdmin
from ottla.client.brokers import new_backoff
from ottla.client.consumer.list_offsets import list_offsets
from ottla.client.consumer.partition_reader import EARLIEST, LATEST
from ottla.client.consumer.types import READ_UNCOMMITTED, TopicPartition
from ottla.client.errors import BrokerRefusedError, error_name, refused
from ottla.client.metadata import PASSING_FAILURES, TopicView, fetch_all
from ottla.net.apis import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_LOG_DIRS,
    INCREMENTAL_ALTER_CONFIGS,
    call,
)
from ottla.protocol.model.errors import ErrorCode

SET, DELETE = 0, 1
RESOURCES_A_REQUEST = 500
HIGH_WATERMARK = -1
"""As an offset for `delete_records`: deletes every acknowledged record."""
_SET_FOR_TOPIC = "topic"


class Admin(GroupAdmin, TransactionAdmin, PartitionAdmin, UserAdmin):
    """Administers a cluster. Each call raises a ClientError that says what was refused and why.

    Example:

        async with Admin("127.0.0.1:9092") as admin:
            await admin.create_topic("orders", partitions=3, configs={"ottla.durability": "disk"})
            for topic in await admin.list_topics():
                print(topic.name, topic.partition_count)
    """

    # Topics.

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        assignment: Sequence[Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Creates a topic. Raises TopicExistsError if it already exists.

        -1 selects the broker's default. An assignment lists the broker ids of each partition's replicas, the preferred
        leader first; it replaces both numbers.
        """
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "assignments": [
                {"partition_index": index, "broker_ids": list(replicas)}
                for index, replicas in enumerate(assignment or ())
            ],
            "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
        }
        body = {"topics": [topic], "timeout": self._timeout, "validate_only": validate_only}
        reply = await self._call_controller(CREATE_TOPICS, body, f'creating topic "{name}"')
        for result in reply.topics:
            check(result, f'topic "{name}"')
        if not validate_only:
            await self._until_known(name)

    async def delete_topic(self, name: str) -> None:
        """Deletes a topic. Raises UnknownTopicError if it does not exist."""
        body = {"topics": [{"name": name, "topic_id": None}], "topic_names": [name], "timeout": self._timeout}
        reply = await self._call_controller(DELETE_TOPICS, body, f'deleting topic "{name}"')
        for result in reply.responses:
            check(result, f'topic "{name}"')

    async def list_topics(self, *, internal: bool = False) -> list[TopicListing]:
        """Lists the topics by name; `internal` includes internal topics."""
        view, _ = await self._again(lambda: fetch_all(self._brokers))
        return [
            TopicListing(
                name=topic.name,
                id=str(topic.id),
                partition_count=len(topic.partitions),
                replication_factor=max((len(each.replicas) for each in topic.partitions.values()), default=0),
                internal=topic.internal,
            )
            for topic in sorted(view.topics.values(), key=lambda each: each.name)
            if internal or not topic.internal
        ]

    async def describe_topic(self, name: str) -> TopicDescription:
        """Returns the partitions with their offsets and sizes, and the configuration that was set for the topic."""
        view = await self._topic(name)
        ends = await self._ends(view)
        sizes = await self._sizes(name)
        configs = await self.describe_configs(name)
        return TopicDescription(
            name=view.name,
            id=str(view.id),
            internal=view.internal,
            partitions=[
                describe_partition(each, ends.get(each.index), sizes.get(each.index))
                for each in view.partitions.values()
            ],
            configs={entry.name: entry.value for entry in configs if entry.source == _SET_FOR_TOPIC},
        )

    async def create_partitions(
        self,
        name: str,
        total: int,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Grows a topic to `total` partitions. From then on, keys may map to other partitions.

        An assignment lists the broker ids of each new partition's replicas, the preferred leader first.
        """
        placed = None if assignment is None else [{"broker_ids": list(replicas)} for replicas in assignment]
        body = {
            "topics": [{"name": name, "count": total, "assignments": placed}],
            "timeout": self._timeout,
            "validate_only": validate_only,
        }
        reply = await self._call_controller(CREATE_PARTITIONS, body, f'adding partitions to "{name}"')
        for result in reply.results:
            check(result, f'topic "{name}"')

    async def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        """Deletes the records before these offsets (HIGH_WATERMARK deletes all). Returns the new first offsets."""
        return {
            TopicPartition(topic, partition): await self._delete_before(TopicPartition(topic, partition), offset)
            for (topic, partition), offset in before.items()
        }

    async def _delete_before(self, at: TopicPartition, offset: int) -> int:
        """Retries with the next leader if this one is gone; deleting the same records twice does no harm."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_ms / 1000
        backoff = new_backoff(min_ms=20)
        while True:
            view = await self._topic(at.topic)
            leader = self._metadata.leader(*at)
            if at.partition not in view.partitions:
                raise refused(ErrorCode.unknown_topic_or_partition, str(at))
            try:
                if leader is None:
                    raise refused(ErrorCode.leader_not_available, str(at))
                wanted = {"name": at.topic, "partitions": [{"partition_index": at.partition, "offset": offset}]}
                body = {"topics": [wanted], "timeout": self._timeout}
                connection = await self._brokers.connection(leader)
                reply = await call(connection, DELETE_RECORDS, body, what="deleting records")
                (result,) = reply.topics[0].partitions
                check(result, str(at))
                return int(result.low_watermark)
            except (*PASSING_FAILURES, BrokerRefusedError) as failure:
                is_final = isinstance(failure, BrokerRefusedError) and not failure.retriable
                if is_final or loop.time() >= deadline_s:
                    raise
            await asyncio.sleep(backoff.next_s())

    # Configuration.

    async def describe_configs(
        self, topic: str | None = None, *, broker_id: int | None = None, documentation: bool = False
    ) -> list[ConfigEntry]:
        """Returns the configuration of a topic or of a broker, sorted by name."""
        kind, name = _resource(topic, broker_id)
        body = {
            "resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}],
            "include_synonyms": False,
            "include_documentation": documentation,
        }
        connection = await self._connection_for(broker_id)
        reply = await call(connection, DESCRIBE_CONFIGS, body, what=f'reading the configuration of "{name}"')
        (result,) = reply.results
        check(result, _resource_text(kind, name))
        entries = [
            ConfigEntry(
                name=each.name,
                value=each.value,
                source=SOURCES.get(int(each.config_source), "unknown"),
                read_only=bool(each.read_only),
                sensitive=bool(each.is_sensitive),
                documentation=each.documentation,
            )
            for each in result.configs
        ]
        return sorted(entries, key=lambda each: each.name)

    async def describe_topic_configs(self, topics: Iterable[str], key: str) -> dict[str, str | None]:
        """Returns one configuration value of many topics, by topic. Topics deleted meanwhile are left out."""
        names = list(topics)
        found: dict[str, str | None] = {}
        for start in range(0, len(names), RESOURCES_A_REQUEST):
            wanted = [
                {"resource_type": TOPIC, "resource_name": name, "configuration_keys": [key]}
                for name in names[start : start + RESOURCES_A_REQUEST]
            ]
            body = {"resources": wanted, "include_synonyms": False, "include_documentation": False}
            reply = await self._ask(DESCRIBE_CONFIGS, body, "reading the configuration of topics")
            for result in reply.results:
                if result.error_code != ErrorCode.unknown_topic_or_partition:
                    check(result, _resource_text(TOPIC, result.resource_name))
                    found[result.resource_name] = next(
                        (each.value for each in result.configs if each.name == key), None
                    )
        return found

    async def alter_configs(
        self,
        topic: str | None = None,
        *,
        broker_id: int | None = None,
        set_values: Mapping[str, str] | None = None,
        delete: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Sets some values and resets others to their defaults. All other values stay unchanged."""
        kind, name = _resource(topic, broker_id)
        changes = [{"name": key, "config_operation": SET, "value": value} for key, value in (set_values or {}).items()]
        changes += [{"name": key, "config_operation": DELETE, "value": None} for key in delete]
        body = {
            "resources": [{"resource_type": kind, "resource_name": name, "configs": changes}],
            "validate_only": validate_only,
        }
        connection = await self._connection_for(broker_id)
        reply = await call(connection, INCREMENTAL_ALTER_CONFIGS, body, what=f'configuring "{name}"')
        for result in reply.responses:
            check(result, _resource_text(kind, name))

    # The cluster.

    async def describe_cluster(self) -> ClusterDescription:
        """Returns the cluster id, the controller and the brokers."""
        body = {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": False}
        reply = await self._ask(DESCRIBE_CLUSTER, body, "describing the cluster")
        check(reply, "the cluster")
        brokers = [BrokerDescription(int(b.broker_id), b.host, int(b.port), b.rack) for b in reply.brokers]
        return ClusterDescription(reply.cluster_id, int(reply.controller_id), brokers)

    async def describe_log_dirs(
        self, topic: str | None = None, *, broker_id: int | None = None
    ) -> list[LogDirDescription]:
        """Returns the disks of every broker or of one broker, with all partitions or only those of `topic`.

        A disk that its broker reports as failed raises an error. With `broker_id`, the result has it in `error`
        instead.
        """
        await self._metadata.refresh()
        found: list[LogDirDescription] = []
        wanted = None
        if topic is not None:
            view = await self._topic(topic)
            wanted = [{"topic": topic, "partitions": list(view.partitions)}]
        for asked in self._metadata.view.nodes if broker_id is None else [broker_id]:
            connection = await self._brokers.connection(asked)
            reply = await call(connection, DESCRIBE_LOG_DIRS, {"topics": wanted}, what="describing the disks")
            for result in reply.results:
                if broker_id is None:
                    check(result, f"the disk {result.log_dir} of broker {asked}")
                found.append(_log_dir(asked, result))
        return found

    # The rest.

    async def _ends(self, view: TopicView) -> dict[int, tuple[int, int]]:
        led = [TopicPartition(view.name, index) for index, each in view.partitions.items() if each.leader >= 0]
        ask = {"isolation_level": READ_UNCOMMITTED, "timeout_ms": self._timeout_ms}
        first = await list_offsets(self._brokers, self._metadata, dict.fromkeys(led, EARLIEST), **ask)
        last = await list_offsets(self._brokers, self._metadata, dict.fromkeys(led, LATEST), **ask)
        return {at.partition: (first[at].offset, last[at].offset) for at in led}

    async def _sizes(self, topic: str) -> dict[int, int]:
        """Returns the size of the largest replica of each partition."""
        sizes: dict[int, int] = {}
        for directory in await self.describe_log_dirs(topic):
            for each in directory.partitions:
                sizes[each.partition] = max(sizes.get(each.partition, 0), each.size_bytes)
        return sizes


def _resource(topic: str | None, broker_id: int | None) -> tuple[int, str]:
    if (topic is None) == (broker_id is None):
        raise ValueError("name a topic or a broker_id")
    return (TOPIC, topic) if topic is not None else (BROKER, str(broker_id))


def _resource_text(kind: int, name: str) -> str:
    return f'topic "{name}"' if kind == TOPIC else f"broker {name}"


def _log_dir(broker_id: int, result: Any) -> LogDirDescription:
    return LogDirDescription(
        broker_id=broker_id,
        path=result.log_dir,
        total_bytes=int(getattr(result, "total_bytes", -1)),
        usable_bytes=int(getattr(result, "usable_bytes", -1)),
        error=error_name(result.error_code) if result.error_code else None,
        partitions=[
            LogDirPartition(topic.name, int(each.partition_index), int(each.partition_size), int(each.offset_lag))
            for topic in result.topics
            for each in topic.partitions
        ],
    )

"""The admin client: topics, partitions, configurations, records, the cluster and its disks.

async with Admin("127.0.0.1:9092") as admin:
    await admin.create_topic("orders", partitions=3, configs={"ottla.durability": "disk"})
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from ottla.client.apis import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_LOG_DIRS,
    INCREMENTAL_ALTER_CONFIGS,
    ClientApi,
    call,
)
from ottla.client.brokers import Backoff, Brokers
from ottla.client.connection import Connection
from ottla.client.descriptions import (
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
from ottla.client.errors import ClientError, NoBrokerError, refused
from ottla.client.fetched import READ_UNCOMMITTED, TopicPartition
from ottla.client.list_offsets import list_offsets
from ottla.client.metadata import Metadata, TopicView, fetch_all
from ottla.client.partition_reader import EARLIEST, LATEST
from ottla.model.errors import ErrorCode

SET, DELETE = 0, 1
HIGH_WATERMARK = -1
"""Deletes every record that is acknowledged."""
_SET_FOR_TOPIC = "topic"


class Admin:
    """Each call raises a ClientError that says what was refused and why."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        client_id: str = "ottla-admin",
        connect_timeout_ms: int = 10_000,
        request_timeout_ms: int = 30_000,
    ) -> None:
        self._timeout_ms = request_timeout_ms
        self._brokers = Brokers(
            bootstrap_servers,
            client_id=client_id,
            connect_timeout_ms=connect_timeout_ms,
            request_timeout_ms=request_timeout_ms,
        )
        self._metadata = Metadata(self._brokers, allow_auto_create=False)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connects. NoBrokerError if nobody answers."""
        try:
            await self._metadata.refresh()
        except BaseException:
            await self._brokers.close()
            raise

    async def close(self) -> None:
        await self._brokers.close()

    # Topics.

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """-1 leaves a number to the broker's defaults. TopicExistsError if it is there already."""
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
        }
        body = {"topics": [topic], "timeout": self._timeout, "validate_only": validate_only}
        reply = await self._call_controller(CREATE_TOPICS, body, f'creating topic "{name}"')
        for result in reply.topics:
            _check(result, f'topic "{name}"')
        if not validate_only:
            await self._until_known(name)

    async def delete_topic(self, name: str) -> None:
        body = {"topics": [{"name": name, "topic_id": None}], "topic_names": [name], "timeout": self._timeout}
        reply = await self._call_controller(DELETE_TOPICS, body, f'deleting topic "{name}"')
        for result in reply.responses:
            _check(result, f'topic "{name}"')

    async def list_topics(self, *, internal: bool = False) -> list[TopicListing]:
        view, _ = await fetch_all(self._brokers)
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
        """Partitions with their offsets and sizes, and the configuration that was set for the topic."""
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

    async def create_partitions(self, name: str, total: int, *, validate_only: bool = False) -> None:
        """Grows a topic to `total` partitions. Keys move to other partitions from then on."""
        body = {
            "topics": [{"name": name, "count": total, "assignments": None}],
            "timeout": self._timeout,
            "validate_only": validate_only,
        }
        reply = await self._call_controller(CREATE_PARTITIONS, body, f'adding partitions to "{name}"')
        for result in reply.results:
            _check(result, f'topic "{name}"')

    async def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        """Deletes what lies before the offsets (HIGH_WATERMARK: everything); the new first offsets."""
        deleted: dict[TopicPartition, int] = {}
        for (topic, partition), offset in before.items():
            await self._topic(topic)
            leader = self._metadata.leader(topic, partition)
            if leader is None:
                raise refused(ErrorCode.unknown_topic_or_partition, f"{topic}-{partition}")
            wanted = {"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}
            body = {"topics": [wanted], "timeout": self._timeout}
            reply = await call(await self._brokers.connection(leader), DELETE_RECORDS, body, what="deleting records")
            for result in reply.topics[0].partitions:
                _check(result, f"{topic}-{partition}")
                deleted[TopicPartition(topic, partition)] = int(result.low_watermark)
        return deleted

    # Configuration.

    async def describe_configs(
        self, topic: str | None = None, *, broker_id: int | None = None, documentation: bool = False
    ) -> list[ConfigEntry]:
        """Of a topic or of a broker, sorted by name."""
        kind, name = _resource(topic, broker_id)
        body = {
            "resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}],
            "include_synonyms": False,
            "include_documentation": documentation,
        }
        connection = await self._connection_for(broker_id)
        reply = await call(connection, DESCRIBE_CONFIGS, body, what=f'reading the configuration of "{name}"')
        (result,) = reply.results
        _check(result, _resource_text(kind, name))
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

    async def alter_configs(
        self,
        topic: str | None = None,
        *,
        broker_id: int | None = None,
        set_values: Mapping[str, str] | None = None,
        delete: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Sets some values and resets others to their defaults; the rest stays as it is."""
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
            _check(result, _resource_text(kind, name))

    # The cluster.

    async def describe_cluster(self) -> ClusterDescription:
        body = {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": False}
        reply = await call(await self._brokers.any_connection(), DESCRIBE_CLUSTER, body, what="describing the cluster")
        _check(reply, "the cluster")
        brokers = [BrokerDescription(int(b.broker_id), b.host, int(b.port), b.rack) for b in reply.brokers]
        return ClusterDescription(reply.cluster_id, int(reply.controller_id), brokers)

    async def describe_log_dirs(self, topic: str | None = None) -> list[LogDirDescription]:
        """The disks of every broker; only one topic's partitions if it is named."""
        await self._metadata.refresh()
        found: list[LogDirDescription] = []
        wanted = None
        if topic is not None:
            view = await self._topic(topic)
            wanted = [{"topic": topic, "partitions": list(view.partitions)}]
        for broker_id in self._metadata.view.nodes:
            connection = await self._brokers.connection(broker_id)
            reply = await call(connection, DESCRIBE_LOG_DIRS, {"topics": wanted}, what="describing the disks")
            for result in reply.results:
                _check(result, f"the disk {result.log_dir} of broker {broker_id}")
                found.append(_log_dir(broker_id, result))
        return found

    # The rest.

    @property
    def _timeout(self) -> timedelta:
        return timedelta(milliseconds=self._timeout_ms)

    async def _topic(self, name: str) -> TopicView:
        self._metadata.mark_stale()
        try:
            return await self._metadata.topic(name, timeout_ms=self._timeout_ms, unknown_for_ms=0)
        finally:
            self._metadata.forget([name])

    async def _until_known(self, name: str) -> None:
        """A topic that was created is unknown to some brokers for a moment; a user expects it to be there."""
        self._metadata.mark_stale()
        await self._metadata.topic(name, timeout_ms=self._timeout_ms, unknown_for_ms=self._timeout_ms)
        self._metadata.forget([name])

    async def _ends(self, view: TopicView) -> dict[int, tuple[int, int]]:
        led = [TopicPartition(view.name, index) for index, each in view.partitions.items() if each.leader >= 0]
        ask = {"isolation_level": READ_UNCOMMITTED, "timeout_ms": self._timeout_ms}
        first = await list_offsets(self._brokers, self._metadata, dict.fromkeys(led, EARLIEST), **ask)
        last = await list_offsets(self._brokers, self._metadata, dict.fromkeys(led, LATEST), **ask)
        return {at.partition: (first[at].offset, last[at].offset) for at in led}

    async def _sizes(self, topic: str) -> dict[int, int]:
        """The largest replica of each partition."""
        sizes: dict[int, int] = {}
        for directory in await self.describe_log_dirs(topic):
            for each in directory.partitions:
                sizes[each.partition] = max(sizes.get(each.partition, 0), each.size_bytes)
        return sizes

    async def _connection_for(self, broker_id: int | None) -> Connection:
        if broker_id is None:
            return await self._brokers.any_connection()
        return await self._brokers.connection(broker_id)

    async def _call_controller(self, api: ClientApi, body: Mapping[str, Any], what: str) -> Any:
        """The controller's node if the metadata names one that answers, else any broker, which passes it on."""
        backoff = Backoff()
        for _ in range(5):
            await self._metadata.refresh()
            controller_id = self._metadata.view.controller_id
            try:
                connection = await self._connection_for(controller_id if controller_id >= 0 else None)
            except NoBrokerError:
                connection = await self._brokers.any_connection()
            reply = await call(connection, api, body, what=what, timeout_ms=self._timeout_ms + 1000)
            if not _not_controller(reply):
                return reply
            await asyncio.sleep(backoff.next_pause_ms() / 1000)
        raise ClientError(f"{what}: the cluster has no controller at the moment")


def _not_controller(reply: Any) -> bool:
    results: Any = ()
    for name in ("topics", "responses", "results"):
        results = results or getattr(reply, name, ())
    return any(result.error_code == ErrorCode.not_controller for result in results)


def _check(result: Any, what: str) -> None:
    if result.error_code:
        raise refused(result.error_code, what, getattr(result, "error_message", None))


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
        partitions=[
            LogDirPartition(topic.name, int(each.partition_index), int(each.partition_size), int(each.offset_lag))
            for topic in result.topics
            for each in topic.partitions
        ],
    )

"""aiokafka, on asyncio. Each call runs its own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import BrokerResponseError

from tests.conformance.clients.interface import (
    REQUEST_BYTES_MAX,
    TIMEOUT_S,
    Ability,
    Client,
    Record,
    RefusedByBroker,
    until_led,
)

T = TypeVar("T")


class AiokafkaClient(Client):
    name = "aiokafka"
    abilities = frozenset(Ability) - {Ability.INCREMENTAL_CONFIGS}

    def create_topic(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        new = NewTopic(topic, partitions, self.replicas, topic_configs=dict(configs or {}))
        reply = self._with_admin(lambda admin: admin.create_topics([new]))
        _raise_first([(code, text) for _, code, text, *_ in reply.topic_errors])

    def delete_topic(self, topic: str) -> None:
        reply = self._with_admin(lambda admin: admin.delete_topics([topic]))
        _raise_first([(code, None) for _, code, *_ in reply.topic_error_codes])

    def create_partitions(self, topic: str, total: int) -> None:
        self._with_admin(lambda admin: admin.create_partitions({topic: NewPartitions(total)}))

    def topics(self) -> dict[str, int]:
        described = self._with_admin(lambda admin: admin.describe_topics())
        return {topic["topic"]: len(topic["partitions"]) for topic in described}

    def configs(self, topic: str) -> dict[str, str | None]:
        return self._configs(ConfigResource(ConfigResourceType.TOPIC, topic))

    def broker_configs(self, broker_id: int) -> dict[str, str | None]:
        return self._configs(ConfigResource(ConfigResourceType.BROKER, str(broker_id)))

    def _configs(self, resource: ConfigResource) -> dict[str, str | None]:
        (reply,) = self._with_admin(lambda admin: admin.describe_configs([resource]))
        code, text, _kind, _name, entries, *_ = reply.resources[0]
        _raise_first([(code, text)])
        return {entry[0]: entry[1] for entry in entries}

    def alter_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})
        (reply,) = self._with_admin(lambda admin: admin.alter_configs([resource]))
        _raise_first([(code, text) for code, text, *_ in reply.resources])

    def delete_records(self, topic: str, before: int, *, partition: int = 0) -> int:
        where = TopicPartition(topic, partition)
        wanted = {where: RecordsToDelete(before_offset=before)}
        deleted = until_led(lambda: self._with_admin(lambda admin: admin.delete_records(wanted)))
        return int(deleted[where])

    def write(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        idempotent: bool = True,
        acks: int = -1,
        pause_ms: float = 0,
    ) -> list[int]:
        async def send() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                acks="all" if acks == -1 else acks,
                linger_ms=5,
                max_request_size=REQUEST_BYTES_MAX,
            )
            async with producer:
                sent = []
                for record in records:
                    sent.append(
                        await producer.send(
                            topic,
                            value=record.value,
                            key=record.key,
                            partition=record.partition,
                            timestamp_ms=record.timestamp_ms,
                            headers=list(record.headers),
                        )
                    )
                    if pause_ms:
                        await asyncio.sleep(pause_ms / 1000)
                outcomes = [await future for future in sent]
                return [-1 if outcome is None else outcome.offset for outcome in outcomes]  # None without acks

        return _run(send())

    def read(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Record]:
        where = TopicPartition(topic, partition)

        async def fetch() -> list[Record]:
            found: list[Record] = []
            async with self._consumer() as consumer:
                consumer.assign([where])
                consumer.seek(where, offset)
                deadline = asyncio.get_running_loop().time() + TIMEOUT_S
                while len(found) < count and asyncio.get_running_loop().time() < deadline:
                    messages = (await consumer.getmany(where, timeout_ms=200)).get(where, [])
                    found += [_record(message) for message in messages]
            return found[:count]

        return _run(fetch())

    def offset_for_time(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        where = TopicPartition(topic, partition)

        async def ask() -> int | None:
            async with self._consumer() as consumer:
                found = (await consumer.offsets_for_times({where: timestamp_ms}))[where]
                return None if found is None else int(found.offset)

        return _run(ask())

    def ends(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        where = TopicPartition(topic, partition)

        async def ask() -> tuple[int, int]:
            async with self._consumer() as consumer:
                first = await consumer.beginning_offsets([where])
                end = await consumer.end_offsets([where])
                return first[where], end[where]

        return _run(ask())

    def _with_admin(self, ask: Callable[[AIOKafkaAdminClient], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            try:
                return await ask(admin)
            finally:
                await admin.close()

        return _run(run())

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
            max_partition_fetch_bytes=REQUEST_BYTES_MAX,
        )
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(asyncio.wait_for(work, TIMEOUT_S * 2))
    except BrokerResponseError as refused:
        raise RefusedByBroker(refused.errno, str(refused)) from None


def _record(message: Any) -> Record:
    return Record(
        value=message.value,
        key=message.key,
        headers=tuple(message.headers),
        timestamp_ms=message.timestamp,
        partition=message.partition,
        offset=message.offset,
    )


def _raise_first(outcomes: Sequence[tuple[int, str | None]]) -> None:
    for code, text in outcomes:
        if code:
            raise RefusedByBroker(code, text)

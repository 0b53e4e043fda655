"""librdkafka through confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from tests.conformance.clients.interface import (
    REQUEST_BYTES_MAX,
    TIMEOUT_S,
    Ability,
    Client,
    Headers,
    Record,
    RefusedByBroker,
    until_led,
)

T = TypeVar("T")
MOVED = (KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)


class ConfluentClient(Client):
    name = "confluent-kafka"
    abilities = frozenset(Ability)

    def __init__(self, bootstrap: str, replicas: int = 1) -> None:
        super().__init__(bootstrap, replicas)
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def close(self) -> None:
        """Drops the admin client: the library ends it and its threads when the last reference is gone."""
        del self._admin

    def create_topic(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        new = NewTopic(topic, num_partitions=partitions, replication_factor=self.replicas, config=dict(configs or {}))
        _one(self._admin.create_topics([new], request_timeout=TIMEOUT_S))

    def delete_topic(self, topic: str) -> None:
        _one(self._admin.delete_topics([topic], request_timeout=TIMEOUT_S))

    def create_partitions(self, topic: str, total: int) -> None:
        _one(self._admin.create_partitions([NewPartitions(topic, total)], request_timeout=TIMEOUT_S))

    def topics(self) -> dict[str, int]:
        listed = self._admin.list_topics(timeout=TIMEOUT_S).topics
        return {name: len(topic.partitions) for name, topic in listed.items()}

    def configs(self, topic: str) -> dict[str, str | None]:
        return self._configs(ConfigResource(ConfigResource.Type.TOPIC, topic))

    def broker_configs(self, broker_id: int) -> dict[str, str | None]:
        return self._configs(ConfigResource(ConfigResource.Type.BROKER, str(broker_id)))

    def _configs(self, resource: ConfigResource) -> dict[str, str | None]:
        found = _one(self._admin.describe_configs([resource], request_timeout=TIMEOUT_S))
        return {name: entry.value for name, entry in found.items()}

    def alter_config(self, topic: str, name: str, value: str) -> None:
        change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[change])
        _one(self._admin.incremental_alter_configs([resource], request_timeout=TIMEOUT_S))

    def delete_records(self, topic: str, before: int, *, partition: int = 0) -> int:
        where = TopicPartition(topic, partition, before)
        deleted = until_led(lambda: _one(self._admin.delete_records([where])))
        return int(deleted.low_watermark)

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
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "acks": acks,
                "linger.ms": 5,
                "message.max.bytes": REQUEST_BYTES_MAX,
                "message.timeout.ms": int(TIMEOUT_S * 1000),
            }
        )
        delivered: list[int] = []
        failed: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append(error)
            else:
                delivered.append(message.offset() or 0)

        for record in records:
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                on_delivery=on_delivery,
                timestamp=record.timestamp_ms or 0,
                headers=list(record.headers),
            )
            if pause_ms:
                producer.poll(pause_ms / 1000)
        producer.flush(TIMEOUT_S)
        if failed:
            raise _refused(failed[0])
        assert len(delivered) == len(records), "not every delivery was reported"
        return delivered

    def read(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Record]:
        found: list[Record] = []
        with _Reading(self.bootstrap) as consumer:
            consumer.assign([TopicPartition(topic, partition, offset)])
            deadline = time.monotonic() + TIMEOUT_S
            while len(found) < count and time.monotonic() < deadline:
                for message in consumer.consume(count - len(found), 0.2):
                    if (error := message.error()) is not None:
                        raise _refused(error)
                    found.append(_record(message))
        return found

    def offset_for_time(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        def ask(consumer: Consumer) -> TopicPartition:
            (found,) = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp_ms)], TIMEOUT_S)
            if found.error is not None:
                raise KafkaException(found.error)
            return found

        found = self._ask_again(ask)
        return found.offset if found.offset >= 0 else None

    def ends(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        where = TopicPartition(topic, partition)
        low, high = self._ask_again(lambda consumer: consumer.get_watermark_offsets(where, TIMEOUT_S))
        return low, high

    def _ask_again(self, ask: Callable[[Consumer], T]) -> T:
        """Retries while a new leader does not know the partition yet, which this library leaves to its users."""
        deadline = time.monotonic() + TIMEOUT_S
        with _Reading(self.bootstrap) as consumer:
            while True:
                try:
                    return ask(consumer)
                except KafkaException as refused:
                    if refused.args[0].code() not in MOVED or time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)


class _Reading:
    """A consumer that is closed after use. It has a group id because the library requires one, but joins no group."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
            }
        )

    def __enter__(self) -> Consumer:
        return self._consumer

    def __exit__(self, *_: object) -> None:
        self._consumer.close()


def _record(message: Message) -> Record:
    return Record(
        value=message.value(),
        key=message.key(),
        headers=tuple(cast(Headers, message.headers() or ())),
        timestamp_ms=message.timestamp()[1],
        partition=message.partition() or 0,
        offset=message.offset(),
    )


def _one(futures: Mapping[Any, Any]) -> Any:
    (future,) = futures.values()
    try:
        return future.result(TIMEOUT_S)
    except KafkaException as refused:
        raise _refused(refused.args[0]) from None


def _refused(error: KafkaError) -> Exception:
    if error.code() < 0:  # an error of the library, not a reply of the broker
        return RuntimeError(f"{error.name()}: {error.str()}")
    return RefusedByBroker(error.code(), error.str())

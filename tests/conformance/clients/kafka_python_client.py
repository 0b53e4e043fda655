"""kafka-python, in pure Python."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import BrokerResponseError

from tests.conformance.clients.interface import (
    REQUEST_BYTES_MAX,
    TIMEOUT_S,
    Ability,
    Client,
    Record,
    RefusedByBroker,
)


class KafkaPythonClient(Client):
    name = "kafka-python"
    abilities = frozenset(Ability)

    def create_topic(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        options = {"num_partitions": partitions, "replication_factor": self.replicas, "configs": dict(configs or {})}
        with self._admin() as admin:
            admin.create_topics({topic: options})

    def delete_topic(self, topic: str) -> None:
        with self._admin() as admin:
            admin.delete_topics([topic])

    def create_partitions(self, topic: str, total: int) -> None:
        with self._admin() as admin:
            admin.create_partitions({topic: total})

    def topics(self) -> dict[str, int]:
        with self._admin() as admin:
            return {topic["name"]: len(topic["partitions"]) for topic in admin.describe_topics()}

    def configs(self, topic: str) -> dict[str, str | None]:
        return self._configs("topic", topic)

    def broker_configs(self, broker_id: int) -> dict[str, str | None]:
        return self._configs("broker", str(broker_id))

    def _configs(self, kind: str, name: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType[kind.upper()], name)
        with self._admin() as admin:
            found = admin.describe_configs([resource], config_filter="all")[kind][name]
        return {key: entry["value"] for key, entry in found.items()}

    def alter_config(self, topic: str, name: str, value: str) -> None:
        with self._admin() as admin:
            outcomes = admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})])
        outcome = outcomes["topic"][topic]
        if found := re.match(r"\[Error (\d+)\] (.*)", outcome):
            raise RefusedByBroker(int(found.group(1)), found.group(2))
        assert outcome == "OK"

    def delete_records(self, topic: str, before: int, *, partition: int = 0) -> int:
        where = TopicPartition(topic, partition)
        with self._admin() as admin:
            deleted = admin.delete_records({where: before}, timeout_ms=int(TIMEOUT_S * 1000))
        return int(deleted[where]["low_watermark"])

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
        with _closing(
            KafkaProducer(
                bootstrap_servers=self.bootstrap,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                acks=acks,
                max_in_flight_requests_per_connection=5 if idempotent else 1,
                linger_ms=5,
                max_request_size=REQUEST_BYTES_MAX,
                max_block_ms=int(TIMEOUT_S * 1000),
                delivery_timeout_ms=int(TIMEOUT_S * 1000),
                request_timeout_ms=10_000,
            )
        ) as producer:
            sent = []
            for record in records:
                sent.append(
                    producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                    )
                )
                time.sleep(pause_ms / 1000)
            producer.flush(timeout=TIMEOUT_S)
            return [future.get(timeout=TIMEOUT_S).offset for future in sent]

    def read(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Record]:
        where = TopicPartition(topic, partition)
        found: list[Record] = []
        with self._consumer() as consumer:
            consumer.assign([where])
            consumer.seek(where, offset)
            deadline = time.monotonic() + TIMEOUT_S
            while len(found) < count and time.monotonic() < deadline:
                messages = consumer.poll(timeout_ms=200).get(where, [])
                found += [_record(message) for message in messages]
        return found[:count]

    def offset_for_time(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        where = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            found = consumer.offsets_for_times({where: timestamp_ms})[where]
        return None if found is None else int(found.offset)

    def ends(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        where = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            return consumer.beginning_offsets([where])[where], consumer.end_offsets([where])[where]

    @contextmanager
    def _admin(self) -> Iterator[KafkaAdminClient]:
        with _closing(KafkaAdminClient(bootstrap_servers=self.bootstrap)) as admin:
            yield admin

    @contextmanager
    def _consumer(self) -> Iterator[KafkaConsumer]:
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
            max_partition_fetch_bytes=REQUEST_BYTES_MAX,
        )
        with _closing(consumer):
            yield consumer


@contextmanager
def _closing(client: Any) -> Iterator[Any]:
    try:
        yield client
    except BrokerResponseError as refused:
        raise RefusedByBroker(refused.errno, str(refused)) from None
    finally:
        client.close()


def _record(message: Any) -> Record:
    return Record(
        value=message.value,
        key=message.key,
        headers=tuple((name, value) for name, value in message.headers),
        timestamp_ms=message.timestamp,
        partition=message.partition,
        offset=message.offset,
    )

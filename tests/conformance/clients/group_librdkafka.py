"""Groups through librdkafka: confluent-kafka and kcat."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.conformance.clients.group_interface import CLASSIC, CONSUMER, SESSION_MS, Described, GroupUser, Offsets
from tests.conformance.clients.interface import TIMEOUT_S, RefusedByBroker


def settings(bootstrap: str, group: str, protocol: str) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "client.id": "ottla-group",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 100,
    }
    if protocol == CLASSIC:
        chosen |= {"session.timeout.ms": SESSION_MS, "partition.assignment.strategy": "range"}
    return chosen


@contextmanager
def member(bootstrap: str, group: str, topic: str, protocol: str = CLASSIC) -> Iterator[Consumer]:
    """Yields a group member that has its assignment; it leaves at the end."""
    consumer = Consumer(settings(bootstrap, group, protocol))
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + TIMEOUT_S
        while not consumer.assignment():
            assert time.monotonic() < deadline, f"no assignment in group {group}"
            consumer.poll(0.05)
        yield consumer
    finally:
        consumer.close()


def read_and_commit(consumer: Consumer, topic: str, count: int) -> list[bytes]:
    """Reads that many records, or those that arrive in time. Commits the offsets of what was read."""
    found: list[bytes] = []
    read_up_to: dict[int, int] = {}
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(found), 0.2):
            assert message.error() is None, message.error()
            found.append(message.value() or b"")
            read_up_to[message.partition() or 0] = (message.offset() or 0) + 1
    offsets = [TopicPartition(topic, partition, offset) for partition, offset in read_up_to.items()]
    if offsets:
        committed = consumer.commit(offsets=offsets, asynchronous=False)
        assert all(each.error is None for each in committed), committed
    return found


class ConfluentGroupUser(GroupUser):
    name = "confluent-kafka"
    protocols = (CLASSIC, CONSUMER)
    can_delete_offsets = False

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def consume(self, group: str, topic: str, count: int, protocol: str = CLASSIC) -> list[bytes]:
        consumer = Consumer(settings(self.bootstrap, group, protocol))
        try:
            consumer.subscribe([topic])
            return read_and_commit(consumer, topic, count)
        finally:
            consumer.close()

    def groups(self) -> dict[str, str | None]:
        listed = self._admin.list_consumer_groups(request_timeout=TIMEOUT_S).result(TIMEOUT_S)
        assert not listed.errors, listed.errors
        return {group.group_id: _words(group.state.name) for group in listed.valid}

    def describe(self, group: str) -> Described:
        found = _one(self._admin.describe_consumer_groups([group], include_authorized_operations=True))
        members = tuple(
            (
                each.client_id,
                each.host,
                frozenset((place.topic, place.partition) for place in each.assignment.topic_partitions),
            )
            for each in found.members
        )
        assert {"READ", "DELETE", "DESCRIBE"} <= {operation.name for operation in found.authorized_operations}
        return Described(_words(found.state.name), members)

    def offsets(self, group: str) -> Offsets:
        found = _one(self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
        return {(place.topic, place.partition): place.offset for place in found.topic_partitions}

    def alter_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        altered = _one(self._admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)]))
        for place in altered.topic_partitions:
            if place.error is not None:
                raise RefusedByBroker(place.error.code(), place.error.str())

    def delete_group(self, group: str) -> None:
        _one(self._admin.delete_consumer_groups([group]))


class KcatGroupUser(GroupUser):
    name = "kcat"
    is_admin = False

    def consume(self, group: str, topic: str, count: int, protocol: str = CLASSIC) -> list[bytes]:
        """Reads records; kcat commits when it ends."""
        command = ["kcat", "-b", self.bootstrap, "-q", "-G", group, "-c", str(count), "-D", "\n"]
        command += ["-X", "auto.offset.reset=earliest", "-X", f"session.timeout.ms={SESSION_MS}", topic]
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S * 2, check=True)
        return done.stdout.splitlines()


def _words(name: str) -> str:
    """Returns PREPARING_REBALANCING and the like as the broker writes it."""
    return name.title().replace("_", "")


def _one(futures: Mapping[Any, Any]) -> Any:
    (future,) = futures.values()
    try:
        return future.result(TIMEOUT_S)
    except KafkaException as refused:
        raise RefusedByBroker(refused.args[0].code(), refused.args[0].str()) from None

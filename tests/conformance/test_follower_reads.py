"""librdkafka reads from a follower in its rack, and from the leader when that follower is down or hangs (KIP-392)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.app import BrokerSettings
from ottla.broker.broker import Broker
from ottla.protocol.model.broker_config import RACK_AWARE_SELECTOR
from ottla.testing.broker_thread import BrokerThread

TIMEOUT_S = 120.0
COUNT = 500
TOPIC = "orders"


class Racks:
    """Three brokers of one cluster, each in a rack and on its own thread."""

    def __init__(self, directory: Path) -> None:
        self.brokers = {number: BrokerThread(settings(directory, number), number) for number in (1, 2, 3)}
        for broker in self.brokers.values():
            broker.start()
        self.bootstrap = ",".join(broker.address for broker in self.brokers.values())

    def stop(self) -> None:
        for broker in self.brokers.values():
            broker.kill()

    def broker(self, number: int) -> Broker:
        running = self.brokers[number].running
        assert running is not None
        return running.broker

    def bytes_read(self, number: int) -> int:
        """Bytes that consumers have read from this broker."""
        return self.broker(number).traffic.by_consumers.bytes

    def create_topic(self) -> tuple[int, int]:
        """Creates a topic and returns its leader and a follower when all replicas are in sync."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result(TIMEOUT_S)
        until(lambda: len(admin.list_topics(TOPIC).topics[TOPIC].partitions[0].isrs) == 3)
        leader = admin.list_topics(TOPIC).topics[TOPIC].partitions[0].leader
        return leader, next(number for number in self.brokers if number != leader)

    def produce(self, first: int) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all"})
        for number in range(first, first + COUNT):
            producer.produce(TOPIC, b"%d" % number)
        assert producer.flush(TIMEOUT_S) == 0

    def hang(self, number: int, released: threading.Event) -> None:
        """Blocks the broker's event loop until the event is set: the connections stay open."""

        async def hang() -> None:
            released.wait()  # blocks the loop, not only this task

        threading.Thread(target=self.brokers[number].call, args=(hang(),), daemon=True).start()


def settings(directory: Path, number: int) -> BrokerSettings:
    properties = {
        "node.id": str(number),
        "broker.rack": f"rack-{number}",
        "replica.selector.class": RACK_AWARE_SELECTOR,
        "ottla.coordination": f"sqlite:{directory / 'coordination'}",
        "ottla.host.shared": "true",
        "min.insync.replicas": "2",
        "replica.lag.time.max.ms": "4000",
    }
    return BrokerSettings(data_dir=str(directory / f"broker-{number}"), port=0, properties=properties)


def until(is_so: object) -> None:
    assert callable(is_so)
    deadline_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not come to that"
        time.sleep(0.05)


class Reading:
    def __init__(self, bootstrap: str, rack: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "readers",
                "client.rack": rack,
                "enable.auto.commit": False,
                "socket.timeout.ms": 4000,
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])
        self.values: list[int] = []

    def upto(self, count: int) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(self.values) < count:
            assert time.monotonic() < deadline_s, f"{len(self.values)} of {count} records"
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.values.append(int(message.value() or b""))

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def racks(tmp_path: Path) -> Iterator[Racks]:
    racks = Racks(tmp_path)
    yield racks
    racks.stop()


def test_bytes_come_from_the_follower_in_the_consumers_rack(racks: Racks) -> None:
    leader, follower = racks.create_topic()
    racks.produce(0)
    reading = Reading(racks.bootstrap, f"rack-{follower}")
    reading.upto(COUNT)
    racks.produce(COUNT)
    reading.upto(2 * COUNT)
    reading.close()
    assert reading.values == list(range(2 * COUNT))
    assert racks.bytes_read(follower) > 0
    assert racks.bytes_read(leader) == 0


@pytest.mark.parametrize("fault", ["killed", "hanging"])
def test_the_leader_serves_when_the_follower_is_gone(racks: Racks, fault: str) -> None:
    leader, follower = racks.create_topic()
    racks.produce(0)
    reading = Reading(racks.bootstrap, f"rack-{follower}")
    reading.upto(COUNT)
    assert racks.bytes_read(leader) == 0
    released = threading.Event()
    try:
        if fault == "killed":
            racks.brokers[follower].kill()
        else:
            racks.hang(follower, released)
        racks.produce(COUNT)
        reading.upto(2 * COUNT)
        reading.close()
    finally:
        released.set()
    assert reading.values == list(range(2 * COUNT))
    assert racks.bytes_read(leader) > 0

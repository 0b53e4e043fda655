"""Groups and transactions start although a broker died before their first use, and lose nothing when it returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.testing.cluster_processes import ClusterProcesses
from tests.processes.traffic import create_replicated

OFFSETS, STATE = "__consumer_offsets", "__transaction_state"
WAIT_S = 90.0
CONFIG = {
    "broker.session.timeout.ms": "2000",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "3",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path, config=CONFIG) as cluster:
        yield cluster
        assert "Traceback" not in cluster.log(), cluster.log()[-8000:]


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def placement(bootstrap: str, topic: str) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Returns the replicas and the in-sync replicas of its partitions."""
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=30).topics[topic].partitions
    return {(tuple(sorted(each.replicas)), tuple(sorted(each.isrs))) for each in found.values()}


def is_placed(bootstrap: str, topic: str, brokers: tuple[int, ...]) -> bool:
    return placement(bootstrap, topic) == {(brokers, brokers)}


def commit(bootstrap: str, offset: int) -> None:
    """A group member joins, gets its partition and commits."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    try:
        consumer.subscribe(["orders"])
        until(lambda: (consumer.poll(0.2), bool(consumer.assignment()))[1], "the group has no generation")
        consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    finally:
        consumer.close()


def committed(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    try:
        (found,) = consumer.committed([TopicPartition("orders", 0)], timeout=WAIT_S)
        return int(found.offset)
    finally:
        consumer.close()


def transact(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("orders", b"in a transaction", partition=0)
    producer.commit_transaction(WAIT_S)


def test_a_broker_that_died_before_the_first_group(cluster: ClusterProcesses) -> None:
    create_replicated(cluster.bootstrap, "orders", 1, 3)
    cluster.broker(3).kill()
    alive = ",".join(cluster.broker(number).bootstrap for number in (1, 2))
    until(
        lambda: len(AdminClient({"bootstrap.servers": alive}).list_topics(timeout=30).brokers) == 2, "3 is not missed"
    )
    commit(alive, 5)
    transact(alive)
    for topic in (OFFSETS, STATE):
        assert is_placed(alive, topic, (1, 2)), placement(alive, topic)
    cluster.broker(3).start()
    for topic in (OFFSETS, STATE):
        until(partial(is_placed, alive, topic, (1, 2, 3)), f"{topic} does not grow")
    assert committed(cluster.bootstrap) == 5
    cluster.broker(1).kill()
    assert committed(cluster.bootstrap) == 5
    commit(cluster.bootstrap, 6)
    transact(cluster.bootstrap)
    assert committed(cluster.bootstrap) == 6

"""Transactional producers of real clients: commit, abort, fencing, and consume-transform-produce."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.clients.java_client import why_missing
from tests.conformance.clients.transactions_java import JavaTransactions
from tests.conformance.conftest import LEADERS_MOVE, ONE_BROKER, TopicOf, World
from tests.conformance.test_transactions_raw import raw_peer

TIMEOUT_S = 60.0
DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 65, 66

pytestmark = pytest.mark.worlds(ONE_BROKER, LEADERS_MOVE)


def transactional(bootstrap: str, transactional_id: str, **settings: object) -> confluent_kafka.Producer:
    config = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0, **settings}
    return confluent_kafka.Producer(config)


def made(world: World, topic: str, partitions: int = 1) -> str:
    admin = AdminClient({"bootstrap.servers": world.bootstrap})
    asked = NewTopic(topic, num_partitions=partitions, replication_factor=world.replicas)
    admin.create_topics([asked])[topic].result(TIMEOUT_S)
    return topic


def fresh(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def read(bootstrap: str, topic: str, isolation: str, partitions: Iterable[int] = (0,)) -> list[bytes]:
    """Reads everything up to the end, partition by partition."""
    found: list[bytes] = []
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": fresh("reader"),
        "isolation.level": isolation,
        "enable.partition.eof": True,
    }
    for partition in partitions:
        consumer = confluent_kafka.Consumer(config)
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message.value() or b"")
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                break
        else:
            raise AssertionError(f"{topic}-{partition} was not read to its end")
        consumer.close()
    return found


def until_committed_is(world: World, topic: str, expected: list[bytes], partitions: Iterable[int] = (0,)) -> None:
    """Waits, since markers are written after the producer's commit has returned. Leaders must not move, or a reader may
    not reach the end."""
    if world.mover is not None:
        world.mover.pause()
    end = time.monotonic() + TIMEOUT_S
    while (found := sorted(read(world.bootstrap, topic, "read_committed", partitions))) != sorted(expected):
        assert time.monotonic() < end, f"found {found}, expected {expected}"
        time.sleep(0.2)


def test_a_reader_of_committed_records_sees_what_was_committed(world: World, fresh_topic: TopicOf) -> None:
    topic = made(world, fresh_topic("committed"))
    producer = transactional(world.bootstrap, fresh("writer"))
    producer.init_transactions(TIMEOUT_S)
    committed: list[bytes] = []
    for number in range(6):
        producer.begin_transaction()
        values = [b"%d-%d" % (number, each) for each in range(5)]
        for value in values:
            producer.produce(topic, value, partition=0)
        if number % 2:
            producer.flush(TIMEOUT_S)
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
            committed += values
    until_committed_is(world, topic, committed)
    assert read(world.bootstrap, topic, "read_committed") == committed
    assert len(read(world.bootstrap, topic, "read_uncommitted")) == 30


def test_a_new_producer_fences_the_one_before(world: World, fresh_topic: TopicOf) -> None:
    topic = made(world, fresh_topic("fenced"))
    name = fresh("fenced")
    old = transactional(world.bootstrap, name)
    old.init_transactions(TIMEOUT_S)
    old.begin_transaction()
    old.produce(topic, b"old", partition=0)
    old.flush(TIMEOUT_S)
    new = transactional(world.bootstrap, name)
    new.init_transactions(TIMEOUT_S)
    new.begin_transaction()
    new.produce(topic, b"new", partition=0)
    new.commit_transaction(TIMEOUT_S)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        old.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].fatal(), refused.value
    until_committed_is(world, topic, [b"new"])


def test_a_transaction_that_takes_too_long_is_aborted(world: World, fresh_topic: TopicOf) -> None:
    topic = made(world, fresh_topic("slow"))
    slow = transactional(world.bootstrap, fresh("slow"), **{"transaction.timeout.ms": 2000})
    slow.init_transactions(TIMEOUT_S)
    slow.begin_transaction()
    slow.produce(topic, b"slow", partition=0)
    slow.flush(TIMEOUT_S)
    other = transactional(world.bootstrap, fresh("other"))
    other.init_transactions(TIMEOUT_S)
    other.begin_transaction()
    other.produce(topic, b"other", partition=0)
    other.commit_transaction(TIMEOUT_S)
    # It follows a record of the open transaction: readers get it when that transaction is aborted.
    until_committed_is(world, topic, [b"other"])
    with pytest.raises(confluent_kafka.KafkaException):
        slow.commit_transaction(TIMEOUT_S)


def test_what_is_read_and_what_is_written_are_one(world: World, fresh_topic: TopicOf) -> None:
    """Consume, transform, produce: the offsets are part of the transaction."""
    source, target = made(world, fresh_topic("source")), made(world, fresh_topic("target"))
    plain = confluent_kafka.Producer({"bootstrap.servers": world.bootstrap})
    values = [b"%d" % number for number in range(40)]
    for value in values:
        plain.produce(source, value, partition=0)
    assert plain.flush(TIMEOUT_S) == 0
    group, name = fresh("copy"), fresh("copier")
    begin_at_zero(world.bootstrap, group, source)
    for turn in range(3):
        copy_some(
            world.bootstrap, source, target, group, name, upto=len(values), gives_up_after=None if turn == 2 else 15
        )
    until_committed_is(world, target, [b"=" + value for value in values])
    assert read(world.bootstrap, target, "read_committed") == [b"=" + value for value in values]
    assert len(read(world.bootstrap, target, "read_uncommitted")) > len(values)


def begin_at_zero(bootstrap: str, group: str, topic: str) -> None:
    """Commits offset 0 for the group. librdkafka looks up the beginning of a partition half a second after it has
    learned the leader, with that leader epoch. That fails with FENCED_LEADER_EPOCH, as in Kafka, while leaders move
    more often than that. A group with a committed offset needs no lookup."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()


def copy_some(
    bootstrap: str, source: str, target: str, group: str, name: str, *, upto: int, gives_up_after: int | None
) -> None:
    """Runs one worker. It may stop in the middle of a transaction; the next one resumes at the committed offsets."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([source])
    producer = transactional(bootstrap, name)
    producer.init_transactions(TIMEOUT_S)
    done = 0
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        messages = consumer.consume(10, timeout=1.0)
        messages = [message for message in messages if message.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, b"=" + (message.value() or b""), partition=0)
        done += len(messages)
        if gives_up_after is not None and done > gives_up_after:
            producer.flush(TIMEOUT_S)
            break
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), TIMEOUT_S)
        producer.commit_transaction(TIMEOUT_S)
        if positions[0].offset >= upto:
            break
    else:
        raise AssertionError("the source was not read to its end")
    consumer.close()


# -- the Java client, which speaks version 2 of the transaction protocol ---------------------------------------------


@pytest.fixture
def java() -> None:
    if reason := why_missing():
        pytest.skip(reason)


@pytest.mark.usefixtures("java")
def test_java_commits_and_aborts(world: World, fresh_topic: TopicOf) -> None:
    topic, group = made(world, fresh_topic("java")), fresh("java")
    committed: list[bytes] = []
    with JavaTransactions(world.bootstrap, fresh("java")) as producer:
        for number in range(6):
            assert producer.ask("begin") == "ok"
            for each in range(3):
                assert producer.ask("send", topic, f"{number}-{each}") == "ok"
            assert producer.ask("offsets", group, topic, number) == "ok"
            assert producer.ask("abort" if number % 2 else "commit") == "ok"
            committed += [] if number % 2 else [b"%d-%d" % (number, each) for each in range(3)]
    until_committed_is(world, topic, committed)
    assert read(world.bootstrap, topic, "read_committed") == committed
    assert committed_offset(world.bootstrap, group, topic) == 4


@pytest.mark.usefixtures("java")
@pytest.mark.worlds(ONE_BROKER)
def test_java_speaks_version_2(world: World, fresh_topic: TopicOf) -> None:
    """It learns from ApiVersions that the version is supported: each end of a transaction bumps its epoch."""
    topic, name = made(world, fresh_topic("java")), fresh("java")
    with JavaTransactions(world.bootstrap, name) as producer:
        for end in ("commit", "abort", "commit"):
            assert producer.ask("begin") == "ok"
            assert producer.ask("send", topic, end) == "ok"
            assert producer.ask(end) == "ok"
        assert producer.ask("begin") == "ok"
        assert producer.ask("send", topic, "open") == "ok"
        described, listed = asyncio.run(state_of(world.bootstrap, name))
        assert (described.transaction_state, described.producer_epoch) == ("Ongoing", 3)
        assert [(each.topic, each.partitions) for each in described.topics] == [(topic, (0,))]
        assert [(each.transactional_id, each.transaction_state) for each in listed] == [(name, "Ongoing")]
        assert producer.ask("abort") == "ok"
    until_committed_is(world, topic, [b"commit", b"commit"])


async def state_of(bootstrap: str, transactional_id: str) -> tuple[Any, list[Any]]:
    async with raw_peer(bootstrap, "") as peer:
        described = await peer.call(DESCRIBE_TRANSACTIONS, 0, transactional_ids=(transactional_id,))
        filters: dict[str, Any] = {"state_filters": ("Ongoing",), "producer_id_filters": ()}
        listed = await peer.call(
            LIST_TRANSACTIONS, 2, **filters, duration_filter=-1, transactional_id_pattern=f"{transactional_id}.*"
        )
        assert not described.transaction_states[0].error_code
        assert not listed.error_code
        return described.transaction_states[0], list(listed.transaction_states)


@pytest.mark.usefixtures("java")
def test_java_is_fenced(world: World, fresh_topic: TopicOf) -> None:
    topic, name = made(world, fresh_topic("java")), fresh("java")
    with JavaTransactions(world.bootstrap, name) as old, JavaTransactions(world.bootstrap, fresh("other")) as other:
        assert old.ask("begin") == "ok"
        assert old.ask("send", topic, "old") == "ok"
        with JavaTransactions(world.bootstrap, name) as new:
            assert new.ask("begin") == "ok"
            assert new.ask("send", topic, "new") == "ok"
            assert new.ask("commit") == "ok"
        assert old.ask("commit") in ("error ProducerFencedException", "error InvalidProducerEpochException")
        assert other.ask("begin") == "ok"
        assert other.ask("send", topic, "other") == "ok"
        assert other.ask("commit") == "ok"
    until_committed_is(world, topic, [b"new", b"other"])


def committed_offset(bootstrap: str, group: str, topic: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], TIMEOUT_S)
        return int(found.offset)
    finally:
        consumer.close()

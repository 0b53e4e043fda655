"""Ottla's transactional producer and read_committed consumer on real brokers.

On one broker and on three whose leaders move; with transaction version 2 and as on older brokers. Like the other tests
here they also run against Apache Kafka. `tests/unit/client/test_client_transactions.py` covers each reply of a
coordinator.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import confluent_kafka
import pyarrow as pa
import pytest

from ottla.client import Admin, Consumer, OffsetAndMetadata, Producer, TopicPartition, Transaction
from ottla.client.errors import (
    ClientError,
    CommitFailedError,
    ProducerFencedError,
    RebalancingError,
    TransactionAbortedError,
)
from ottla.client.transactions import coordinator as asking
from tests.conformance.conftest import LEADERS_MOVE, ONE_BROKER, TopicOf, World
from tests.conformance.own_worker import CRASHES, consumer_of, transformed
from tests.conformance.test_transactions import read as read_by_librdkafka

T = TypeVar("T")
PARTITIONS, COUNT = 3, 120
WAIT_S = 120

pytestmark = pytest.mark.worlds(ONE_BROKER, LEADERS_MOVE)


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """With 1 the client does not look for the feature, so it behaves as with an older broker."""
    if request.param == 1:
        monkeypatch.setattr(asking, "TRANSACTION_VERSION", "none")
    return int(request.param)


def fresh(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


async def made(world: World, topic: str, partitions: int = PARTITIONS) -> str:
    async with Admin(world.bootstrap) as admin:
        await admin.create_topic(topic, partitions=partitions, replication_factor=world.replicas)
    return topic


@contextmanager
def resting(world: World) -> Iterator[None]:
    """Stops the moves of leaders, without which a reader may not reach the end."""
    if world.mover is not None:
        world.mover.pause()
    yield
    if world.mover is not None:
        world.mover.go_on()


async def read(world: World, topic: str, isolation: Any = "read_committed") -> list[bytes]:
    """Reads everything, partition by partition, once no transaction is open."""
    found: list[bytes] = []
    settings = {"isolation_level": isolation, "auto_offset_reset": "earliest"}
    with resting(world):
        async with asyncio.timeout(WAIT_S), Consumer(world.bootstrap, **settings) as consumer:
            consumer.assign(await consumer.partitions(topic))
            for at, end in (await stable_ends(consumer)).items():
                consumer.pause(*consumer.assignment)
                consumer.resume(at)
                while await consumer.position(at) < end:
                    found += [record.value or b"" for record in await consumer.fetch_records(timeout_ms=100)]
    return found


async def stable_ends(consumer: Consumer) -> dict[Any, int]:
    """Waits for the markers, which are written after a commit returns: then no transaction is open."""
    async with Consumer(consumer._brokers.bootstrap_text) as plain:
        while True:
            ends = await consumer.end_offsets(consumer.assignment)
            if ends == await plain.end_offsets(consumer.assignment):
                return ends
            await asyncio.sleep(0.05)


async def in_partitions(transaction: Transaction, topics: list[str], name: str) -> list[tuple[str, bytes]]:
    sent = [(topic, f"{name}-{index}-{turn}".encode()) for topic in topics for index in range(3) for turn in range(2)]
    for topic, value in sent:
        await transaction.enqueue(topic, value, partition=int(value.split(b"-")[1]))
    return sent


async def end_in_turn(producer: Producer, topics: list[str], number: int) -> list[tuple[str, bytes]]:
    """Commits, aborts, or aborts after all records were acknowledged."""
    async with producer.transaction() as transaction:
        values = await in_partitions(transaction, topics, f"{number}")
        if number % 3 == 2:
            await producer.flush()
        if number % 3 > 0:
            await transaction.abort()
    return values


async def test_all_or_nothing_over_partitions_and_topics(world: World, fresh_topic: TopicOf, version: int) -> None:
    topics = [await made(world, fresh_topic("own-one")), await made(world, fresh_topic("own-two"))]
    committed: list[tuple[str, bytes]] = []
    sent: list[tuple[str, bytes]] = []
    async with Producer(world.bootstrap, transactional_id=fresh("own"), linger_ms=1) as producer:
        for number in range(6):
            values = await end_in_turn(producer, topics, number)
            sent += values if number % 3 != 1 else []
            committed += values if number % 3 == 0 else []
    for topic in topics:
        expected = sorted(value for at, value in committed if at == topic)
        assert sorted(await read(world, topic)) == expected
        with resting(world):
            theirs = read_by_librdkafka(world.bootstrap, topic, "read_committed", range(3))
        assert sorted(theirs) == expected
        everything = await read(world, topic, "read_uncommitted")
        assert {value for at, value in sent if at == topic} <= set(everything)
        assert len(everything) > len(expected)


async def test_a_reader_of_committed_records_waits_for_what_is_open(world: World, fresh_topic: TopicOf) -> None:
    topic = await made(world, fresh_topic("own-open"), 1)
    async with (
        Producer(world.bootstrap, transactional_id=fresh("open")) as producer,
        Producer(world.bootstrap) as plain,
        Consumer(world.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as committed,
        Consumer(world.bootstrap, auto_offset_reset="earliest") as everything,
    ):
        committed.assign([(topic, 0)])
        everything.assign([(topic, 0)])
        async with producer.transaction() as transaction:
            await transaction.send(topic, b"one")
            await plain.send(topic, b"behind it")
            found: list[Any] = []
            while len(found) < 2:
                found += [record.value for record in await everything.fetch_records(timeout_ms=WAIT_S * 1000)]
            assert await committed.fetch_records(timeout_ms=300) == []
        assert [record.value for record in await take(committed, 2)] == [b"one", b"behind it"]


async def take(consumer: Consumer, count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += await consumer.fetch_records(max_records=count - len(found))
    return found


async def test_a_new_producer_fences_the_one_before(world: World, fresh_topic: TopicOf, version: int) -> None:
    """The old producer's open transaction is aborted before the new one begins."""
    topic, name = await made(world, fresh_topic("own-fenced"), 1), fresh("fenced")
    async with Producer(world.bootstrap, transactional_id=name) as old:
        transaction = await old.transaction().__aenter__()
        await transaction.send(topic, b"old")
        async with Producer(world.bootstrap, transactional_id=name) as new:
            async with new.transaction() as other:
                await other.send(topic, b"new")
            with pytest.raises(ProducerFencedError, match="another producer has started with it"):
                await transaction.commit()
            with pytest.raises(ProducerFencedError):
                old.transaction()
    assert await read(world, topic) == [b"new"]


async def test_a_transaction_that_takes_too_long(world: World, fresh_topic: TopicOf, version: int) -> None:
    topic, name = await made(world, fresh_topic("own-slow"), 1), fresh("slow")
    async with Producer(world.bootstrap, transactional_id=name, transaction_timeout_ms=1000) as producer:
        transaction = await producer.transaction().__aenter__()
        await transaction.send(topic, b"slow")
        assert await read(world, topic) == []  # once the coordinator has aborted it
        with pytest.raises(ProducerFencedError, match="transaction_timeout_ms=1000"):
            await transaction.commit()
    async with Producer(world.bootstrap, transactional_id=name) as producer, producer.transaction() as transaction:
        await transaction.send(topic, b"in time")
    assert await read(world, topic) == [b"in time"]


@pytest.mark.worlds(ONE_BROKER)
async def test_a_program_that_sends_again_after_a_restart_writes_twice(world: World, fresh_topic: TopicOf) -> None:
    """Idempotence covers a producer's retries, not a program: after a restart it is another producer."""
    topic = await made(world, fresh_topic("own-again"), 1)
    for _ in range(2):
        async with Producer(world.bootstrap) as producer:
            await producer.send(topic, b"one")
    assert await read(world, topic) == [b"one", b"one"]


async def fill(world: World, topic: str, count: int) -> list[bytes]:
    values = [b"%d" % number for number in range(count)]
    async with Producer(world.bootstrap) as producer:
        for number, value in enumerate(values):
            await producer.enqueue(topic, value, key=value, partition=number % PARTITIONS)
        await producer.flush()
    return [b"=" + value for value in values]


class TroubleError(Exception):
    """An error of the program itself."""


class Worker:
    """Reads, writes and commits; fails at random, and seeks back to the committed offsets."""

    def __init__(self, world: World, source: str, target: str, group: str, chance: random.Random) -> None:
        self.aborts = 0
        self._world = world
        self._source, self._target, self._group = source, target, group
        self._chance = chance

    async def run(self, protocol: Any) -> None:
        settings = {"group_protocol": protocol, "heartbeat_interval_ms": 200}
        async with (
            consumer_of(self._world.bootstrap, self._group, **settings) as consumer,
            Producer(self._world.bootstrap, transactional_id=fresh(self._group)) as producer,
        ):
            consumer.subscribe([self._source])
            while True:
                records = await consumer.fetch_records(max_records=self._chance.randint(1, 12), timeout_ms=100)
                try:
                    await self._turn(consumer, producer, records)
                except (TroubleError, TransactionAbortedError, CommitFailedError, RebalancingError):
                    self.aborts += 1
                    await consumer.seek_to_committed()

    async def _turn(self, consumer: Consumer, producer: Producer, records: list[Any]) -> None:
        async with producer.transaction() as transaction:
            for record in records:
                await transaction.enqueue(self._target, transformed(record), record.key)
            if self._chance.random() < 0.2:
                raise TroubleError
            await transaction.send_offsets(consumer)
            if self._chance.random() < 0.1:
                raise TroubleError


@asynccontextmanager
async def running(start: Callable[[], Any]) -> AsyncIterator[Callable[[], Any]]:
    """Yields a function that ends a worker and starts another one."""
    tasks = [asyncio.create_task(start()), asyncio.create_task(start())]

    async def replace() -> None:
        first = tasks.pop(0)
        assert not first.done(), first
        first.cancel()
        await asyncio.wait([first])
        tasks.append(asyncio.create_task(start()))

    try:
        yield replace
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()


@pytest.mark.parametrize(("version", "protocol"), [(1, "classic"), (2, "consumer")], indirect=["version"])
async def test_consume_transform_produce(
    world: World, fresh_topic: TopicOf, protocol: str, version: int, seed: int
) -> None:
    """Workers start, stop, fail and get new assignments: the output equals the input."""
    source, target = await made(world, fresh_topic("own-source")), await made(world, fresh_topic("own-target"))
    expected = await fill(world, source, COUNT)
    group = fresh("own-copy")
    worker = Worker(world, source, target, group, random.Random(f"{seed} {protocol} {version}"))
    async with (
        asyncio.timeout(WAIT_S),
        Consumer(world.bootstrap, group_id=group) as looking,
        running(lambda: worker.run(protocol)) as replace,
    ):
        for count in (COUNT // 3, COUNT * 2 // 3):
            await until_committed(looking, source, count)
            await replace()
        await until_committed(looking, source, COUNT)
    assert sorted(await read(world, target)) == sorted(expected)
    assert worker.aborts > 0


async def until_committed(consumer: Consumer, topic: str, count: int) -> None:
    while await committed_by(consumer, topic) < count:  # noqa: ASYNC110 - a group has no event for it
        await asyncio.sleep(0.05)


async def committed_by(consumer: Consumer, topic: str) -> int:
    places = [(topic, index) for index in range(PARTITIONS)]
    try:
        found = await consumer.committed(places)
    except ClientError:
        return 0
    return sum(each.offset for each in found.values() if each is not None)


@pytest.mark.worlds(ONE_BROKER)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_member_that_was_put_out_commits_nothing(
    world: World, fresh_topic: TopicOf, protocol: Any, version: int
) -> None:
    """KIP-447: a removed member and its successor have read the same records, and only one of them commits."""
    source, target = await made(world, fresh_topic("own-source"), 1), await made(world, fresh_topic("own-target"), 1)
    group = fresh("own-zombie")
    async with Producer(world.bootstrap) as plain:
        await plain.send(source, b"1")
    settings = {"group_protocol": protocol, "heartbeat_interval_ms": 200}
    async with (
        consumer_of(world.bootstrap, group, max_poll_interval_ms=1000, **settings) as slow,
        consumer_of(world.bootstrap, group, **settings) as quick,
        Producer(world.bootstrap, transactional_id=fresh("slow")) as slow_producer,
        Producer(world.bootstrap, transactional_id=fresh("quick")) as quick_producer,
    ):
        slow.subscribe([source])
        (record,) = await take(slow, 1)
        quick.subscribe([source])
        (again,) = await take(quick, 1)
        assert again == record
        async with quick_producer.transaction() as transaction:
            await transaction.send(target, b"by the quick one")
            await transaction.send_offsets(quick)
        late = await slow_producer.transaction().__aenter__()
        await late.send(target, b"by the slow one")
        with pytest.raises(CommitFailedError, match="has rebalanced without this consumer"):
            await late.send_offsets(slow)
        with pytest.raises(TransactionAbortedError):
            await late.commit()
    assert await read(world, target) == [b"by the quick one"]


@pytest.mark.worlds(ONE_BROKER)
@pytest.mark.parametrize("where", CRASHES)
async def test_a_worker_that_dies_at_any_step(world: World, fresh_topic: TopicOf, where: str) -> None:
    source, target = await made(world, fresh_topic("own-source")), await made(world, fresh_topic("own-target"))
    expected = await fill(world, source, 90)
    command = [
        sys.executable,
        "-m",
        "tests.conformance.own_worker",
        world.bootstrap,
        source,
        target,
        fresh("dies"),
        "90",
    ]
    died = await asyncio.to_thread(subprocess.run, [*command, where], timeout=WAIT_S, check=False)
    assert died.returncode == 9
    await asyncio.to_thread(subprocess.run, command, timeout=WAIT_S, check=True)
    assert sorted(await read(world, target)) == sorted(expected)
    # If it died with uncommitted records written, they are in the log, and no reader sees them.
    leaves_more = where in ("written", "offsets sent")
    assert (len(await read(world, target, "read_uncommitted")) > len(expected)) == leaves_more


@pytest.mark.worlds(ONE_BROKER)
@pytest.mark.parametrize("committed", [0, 2])
async def test_what_was_read_and_not_committed_comes_again(world: World, fresh_topic: TopicOf, committed: int) -> None:
    """Without a committed offset it restarts where the consumer began: "latest" would skip newer records."""
    topic = await made(world, fresh_topic("own-again"), 1)
    async with (
        Producer(world.bootstrap) as plain,
        Producer(world.bootstrap, transactional_id=fresh("again")) as producer,
        Consumer(
            world.bootstrap, group_id=fresh("again"), auto_commit=False, isolation_level="read_committed"
        ) as consumer,
    ):
        await plain.send(topic, b"before it began")
        consumer.subscribe([topic])
        while not consumer.assignment:
            await consumer.fetch_records(timeout_ms=100)
        assert await consumer.position((topic, 0)) == 1
        for number in range(4):
            await plain.send(topic, b"%d" % number)
        if committed:
            await take(consumer, committed)
            async with producer.transaction() as transaction:
                await transaction.send_offsets(consumer)
        first = await take(consumer, 4 - committed)
        async with producer.transaction() as transaction:
            await transaction.send_offsets(consumer)
            await transaction.abort()
        await consumer.seek_to_committed()
        assert await take(consumer, 4 - committed) == first
        assert [record.value for record in first] == [b"%d" % number for number in range(committed, 4)]


@pytest.mark.worlds(ONE_BROKER)
async def test_tables_in_transactions(world: World, fresh_topic: TopicOf) -> None:
    topic = await made(world, fresh_topic("own-table"), 1)
    async with Producer(world.bootstrap, transactional_id=fresh("table")) as producer:
        for name in ("aborted", "committed"):
            async with producer.transaction() as transaction:
                await transaction.send_table(topic, pa.table({"value": [f"{name} {row}" for row in range(100)]}))
                if name == "aborted":
                    await transaction.abort()
    settings: dict[str, Any] = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    async with Consumer(world.bootstrap, **settings) as consumer:
        consumer.assign([(topic, 0)])
        found = await consumer.fetch_table(timeout_ms=WAIT_S * 1000)
        assert found["value"].to_pylist() == [b"committed %d" % row for row in range(100)]


@pytest.mark.worlds(ONE_BROKER)
async def test_where_offsets_in_a_transaction_do_not_go(world: World, fresh_topic: TopicOf) -> None:
    topic = await made(world, fresh_topic("own-refused"), 1)
    async with Producer(world.bootstrap, transactional_id=fresh("refused")) as producer:
        for settings in ({"auto_commit": True}, {"isolation_level": "read_uncommitted"}):
            chosen: dict[str, Any] = {"auto_commit": False, "isolation_level": "read_committed", **settings}
            async with Consumer(world.bootstrap, group_id=fresh("refused"), **chosen) as consumer:
                consumer.assign([(topic, 0)])
                transaction = await producer.transaction().__aenter__()
                with pytest.raises(ClientError, match="auto_commit=False"):
                    await transaction.send_offsets(consumer)
                await transaction.abort()


@pytest.mark.worlds(ONE_BROKER)
async def test_librdkafka_goes_on_where_our_transaction_committed(world: World, fresh_topic: TopicOf) -> None:
    """Offsets of an aborted transaction have no effect; those of a committed one are the group's."""
    topic, group = await made(world, fresh_topic("own-offsets"), 1), fresh("own-offsets")
    place = confluent_kafka.TopicPartition(topic, 0)
    theirs = confluent_kafka.Consumer({"bootstrap.servers": world.bootstrap, "group.id": group})
    async with (
        Producer(world.bootstrap, transactional_id=fresh("offsets")) as producer,
        consumer_of(world.bootstrap, group) as consumer,
    ):
        consumer.assign([(topic, 0)])
        async with producer.transaction() as transaction:
            await transaction.send_offsets(consumer, {(topic, 0): 3})
        async with producer.transaction() as transaction:
            await transaction.send_offsets(consumer, {(topic, 0): 5})
            await transaction.abort()
        assert await consumer.committed() == {TopicPartition(topic, 0): OffsetAndMetadata(3)}
        (found,) = await asyncio.to_thread(theirs.committed, [place], WAIT_S)
        assert found.offset == 3
    theirs.close()

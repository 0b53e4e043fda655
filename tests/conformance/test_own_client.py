"""Ottla's client against a real broker: by record, by Arrow table, through closed connections and restarts.

Like the other tests here it also runs against Apache Kafka (OTTLA_CONFORMANCE_BOOTSTRAP), except where a test needs its
own broker process.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest

from ottla.client import HIGH_WATERMARK, Admin, Consumer, ConsumerRecord, Producer, TopicPartition
from ottla.client.errors import (
    BrokerRefusedError,
    ClientError,
    DeliveryError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    TopicExistsError,
    UnknownTopicError,
)
from ottla.testing.broker_process import BrokerProcess
from tests.conformance.conftest import LEADERS_MOVE, ONE_BROKER
from tests.conformance.cutting_proxy import CuttingProxy
from tests.conformance.leaders import wait_until_known

pytestmark = pytest.mark.worlds(ONE_BROKER, LEADERS_MOVE)
TopicOf = Callable[[str], str]
T = TypeVar("T")
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


async def create(bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> str:
    async with Admin(bootstrap) as admin:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        await admin.create_topic(topic, partitions=partitions, configs=named)
    await asyncio.to_thread(wait_until_known, bootstrap, topic)
    return topic


async def read_all(bootstrap: str, topic: str, **settings: object) -> list[ConsumerRecord]:
    """Reads everything up to the current end."""
    async with Consumer(bootstrap, auto_offset_reset="earliest", **settings) as consumer:  # type: ignore[arg-type] # any
        partitions = await consumer.partitions(topic)
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        records: list[ConsumerRecord] = []
        while any([await consumer.position(at) < end for at, end in ends.items()]):
            records += await consumer.fetch_records(10_000, timeout_ms=1000)
        return records


async def eventually(ask: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    """Retries: a change is visible at once on the broker that made it, and soon after on the others."""
    deadline = time.monotonic() + 60
    while not holds(found := await ask()):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)
    return found


@pytest.mark.parametrize("codec", CODECS)
async def test_records_with_every_codec(bootstrap: str, fresh_topic: TopicOf, codec: str) -> None:
    topic = await create(bootstrap, fresh_topic(f"own-{codec}"), partitions=3)
    headers = (("source", b"test"), ("null", None))
    async with Producer(bootstrap, compression=codec) as producer:
        where = await producer.send(topic, b"first", key=b"k", headers=headers, timestamp_ms=1_700_000_000_000)
        for number in range(3000):
            await producer.enqueue(topic, b"value %d" % number, key=b"%d" % (number % 100))
        await producer.send(topic, None, key=b"tombstone")
        await producer.flush()
        assert producer.acknowledged_count == 3002
    records = await read_all(bootstrap, topic)
    assert len(records) == 3002
    (first,) = [record for record in records if record.value == b"first"]
    assert (first.partition, first.offset) == (where.partition, where.offset)
    assert (first.key, first.headers, first.timestamp_ms) == (b"k", headers, 1_700_000_000_000)
    assert [record.key for record in records if record.value is None] == [b"tombstone"]
    for key in {b"%d" % number for number in range(100)}:
        mine = [record for record in records if record.key == key]
        assert len({record.partition for record in mine}) == 1
        numbers = [int((record.value or b"")[6:]) for record in mine]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("codec", CODECS)
async def test_tables_with_every_codec(bootstrap: str, fresh_topic: TopicOf, codec: str) -> None:
    topic = await create(bootstrap, fresh_topic(f"table-{codec}"), partitions=4)
    count = 20_000
    table = pa.table(
        {
            "id": [b"%d" % number for number in range(count)],
            "body": [f"value {number}" for number in range(count)],
            "at": pa.array(range(1_700_000_000_000, 1_700_000_000_000 + count), pa.timestamp("ms")),
        }
    )
    async with Producer(bootstrap, compression=codec) as producer:
        parts = await producer.send_table(topic, table, key="id", value="body", timestamp="at")
    assert sum(part.record_count for part in parts) == count
    assert sorted(part.partition for part in parts) == [0, 1, 2, 3]
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        found: list[pa.Table] = []
        while sum(each.num_rows for each in found) < count:
            found.append(await consumer.fetch_table(timeout_ms=10_000))
            assert found[-1].num_rows, "the rest never came"
    whole = pa.concat_tables(found).sort_by("timestamp")
    assert whole["key"].to_pylist() == table["id"].to_pylist()
    assert [value.decode() for value in whole["value"].to_pylist()] == table["body"].to_pylist()
    for part in parts:
        mine = whole.filter(pa.compute.equal(whole["partition"], part.partition))
        assert mine["offset"].to_pylist() == list(range(part.base_offset, part.base_offset + part.record_count))


async def test_a_record_by_iteration(bootstrap: str, fresh_topic: TopicOf) -> None:
    topic = await create(bootstrap, fresh_topic("iterate"), partitions=2)
    async with Producer(bootstrap) as producer, Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        for number in range(10):
            await producer.send(topic, b"%d" % number, partition=number % 2)
        seen = []
        async with asyncio.timeout(20):
            async for record in consumer:
                seen.append(int(record.value or b""))
                if len(seen) == 10:
                    break
        assert sorted(seen) == list(range(10))
        assert await consumer.position((topic, 0)) == 5


async def test_a_consumer_waits_for_what_comes(bootstrap: str, fresh_topic: TopicOf) -> None:
    topic = await create(bootstrap, fresh_topic("wait"))
    async with Producer(bootstrap) as producer, Consumer(bootstrap) as consumer:
        await producer.send(topic, b"before")
        consumer.assign([(topic, 0)])
        assert await consumer.position((topic, 0)) == 1
        waiting = asyncio.create_task(consumer.fetch_records(timeout_ms=20_000))
        await asyncio.sleep(0.05)
        await producer.send(topic, b"after")
        assert [record.value for record in await waiting] == [b"after"]
        assert await consumer.fetch_records(timeout_ms=50) == []


async def test_positions(bootstrap: str, fresh_topic: TopicOf) -> None:
    topic = await create(bootstrap, fresh_topic("seek"))
    at = TopicPartition(topic, 0)
    async with Producer(bootstrap) as producer:
        for number in range(100):
            await producer.enqueue(topic, b"%d" % number, timestamp_ms=1_700_000_000_000 + number * 1000)
        await producer.flush()
    async with Consumer(bootstrap) as consumer:
        consumer.assign([at])
        assert await consumer.beginning_offsets([at]) == {at: 0}
        assert await consumer.end_offsets([at]) == {at: 100}
        consumer.seek(at, 42)
        assert [record.offset for record in await consumer.fetch_records(3, 10_000)] == [42, 43, 44]
        assert await consumer.position(at) == 45
        await consumer.seek_to_beginning()
        assert (await consumer.fetch_records(1, 10_000))[0].offset == 0
        await consumer.seek_to_end(at)
        assert await consumer.fetch_records(1, 100) == []
        found = await consumer.offsets_for_time({at: 1_700_000_000_000 + 70_500})
        assert found[at] == (71, 1_700_000_071_000)
        assert await consumer.offsets_for_time({at: 1_800_000_000_000}) == {at: None}
        consumer.seek(at, 95)
        table = await consumer.fetch_table(timeout_ms=10_000)
        assert table["offset"].to_pylist() == [95, 96, 97, 98, 99]


async def test_an_offset_that_is_not_there(bootstrap: str, fresh_topic: TopicOf) -> None:
    topic = await create(bootstrap, fresh_topic("range"))
    async with Producer(bootstrap) as producer:
        await producer.send(topic, b"only")
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 1000)
        assert [record.offset for record in await consumer.fetch_records(timeout_ms=10_000)] == [0]
    async with Consumer(bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(ClientError, match="seek first"):
            await consumer.fetch_records(timeout_ms=1000)
        consumer.seek((topic, 0), 1000)
        with pytest.raises(OffsetOutOfRangeError, match="offset 1000 of"):
            await consumer.fetch_records(timeout_ms=10_000)
        consumer.seek((topic, 0), 0)
        assert len(await consumer.fetch_records(timeout_ms=10_000)) == 1


async def test_partitions_that_are_added_are_read_from_their_beginning(bootstrap: str, fresh_topic: TopicOf) -> None:
    topic = await create(bootstrap, fresh_topic("grow"))
    async with Consumer(bootstrap, metadata_max_age_ms=200) as consumer, Admin(bootstrap) as admin:
        consumer.subscribe([topic])
        assert await consumer.fetch_records(timeout_ms=300) == []
        await admin.create_partitions(topic, 3)
        async with Producer(bootstrap) as producer:
            for index in range(3):
                await producer.send(topic, b"%d" % index, partition=index)
        found: list[ConsumerRecord] = []
        deadline = time.monotonic() + 60
        while len(found) < 3 and time.monotonic() < deadline:
            found += await consumer.fetch_records(timeout_ms=500)
        assert sorted(record.value or b"" for record in found) == [b"0", b"1", b"2"]
        assert len(consumer.assignment) == 3


async def test_topics_that_do_not_exist(bootstrap: str, fresh_topic: TopicOf) -> None:
    missing = fresh_topic("missing")
    async with Consumer(bootstrap) as consumer:
        consumer.subscribe([missing])
        with pytest.raises(UnknownTopicError, match=f'topic "{missing}": it does not exist'):
            await consumer.fetch_records(timeout_ms=20_000)
        with pytest.raises(UnknownTopicError):
            await consumer.partitions(missing)
    async with Admin(bootstrap) as admin:
        for call in (admin.describe_topic(missing), admin.delete_topic(missing)):
            with pytest.raises(UnknownTopicError):
                await call


async def test_a_topic_that_is_created_again(bootstrap: str, fresh_topic: TopicOf) -> None:
    """A new log under the same name: its offsets start at 0, and both clients switch to it."""
    topic = await create(bootstrap, fresh_topic("again"))
    reader = Consumer(bootstrap, auto_offset_reset="earliest")
    async with Producer(bootstrap) as producer, reader as consumer, Admin(bootstrap) as admin:
        consumer.subscribe([topic])
        for number in range(10):
            await producer.send(topic, b"%d" % number)
        old: list[ConsumerRecord] = []
        while len(old) < 10:
            old += await consumer.fetch_records(timeout_ms=10_000)
        await admin.delete_topic(topic)
        await asyncio.sleep(0.5)
        await admin.create_topic(topic)
        assert (await producer.send(topic, b"new")).offset == 0
        found: list[ConsumerRecord] = []
        deadline = time.monotonic() + 30
        while not found and time.monotonic() < deadline:
            with contextlib.suppress(UnknownTopicError):
                found = await consumer.fetch_records(timeout_ms=1000)
        assert [(record.offset, record.value) for record in found] == [(0, b"new")]


async def test_topics_are_created_on_first_use(bootstrap: str, fresh_topic: TopicOf) -> None:
    topic = fresh_topic("auto")
    async with Producer(bootstrap) as producer:
        assert (await producer.send(topic, b"x")).offset == 0


async def test_what_does_not_fit(bootstrap: str, fresh_topic: TopicOf) -> None:
    topic = await create(bootstrap, fresh_topic("large"), max_message_bytes="2000")
    async with Producer(bootstrap) as producer:
        sent = [producer.send_nowait(topic, b"%d" % number + bytes(90)) for number in range(200)]
        await producer.flush()
        assert [future.result().offset for future in sent] == list(range(200)), "one batch was cut into several"
        with pytest.raises(RecordTooLargeError):
            await producer.send(topic, bytes(5000))
        with pytest.raises(DeliveryError, match="has partitions 0 to 0, not 5"):
            await producer.send(topic, b"x", partition=5)


async def test_the_admin_client(bootstrap: str, fresh_topic: TopicOf) -> None:
    topic = fresh_topic("admin")
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=2, configs={"retention.ms": "3600000"})
        await asyncio.to_thread(wait_until_known, bootstrap, topic)
        with pytest.raises(TopicExistsError):
            await admin.create_topic(topic)
        with pytest.raises(BrokerRefusedError, match="INVALID_TOPIC_EXCEPTION"):
            await admin.create_topic("no spaces allowed")
        with pytest.raises(BrokerRefusedError, match="INVALID_CONFIG"):
            await admin.create_topic(fresh_topic("admin"), configs={"retention.mss": "1"})
        unborn = fresh_topic("admin")
        await admin.create_topic(unborn, validate_only=True)
        listed = await eventually(admin.list_topics, lambda found: topic in [listing.name for listing in found])
        assert unborn not in [listing.name for listing in listed]

        async with Producer(bootstrap) as producer:
            for number in range(10):
                await producer.send(topic, b"%d" % number, partition=1)
        described = await admin.describe_topic(topic)
        assert described.configs["retention.ms"] == "3600000"
        assert [(each.index, each.first_offset, each.end_offset) for each in described.partitions] == [
            (0, 0, 0),
            (1, 0, 10),
        ]
        assert (described.partitions[1].size_bytes or 0) > 0

        assert await admin.delete_records({(topic, 1): 4}) == {(topic, 1): 4}
        assert (await admin.describe_topic(topic)).partitions[1].first_offset == 4
        assert await admin.delete_records({(topic, 1): HIGH_WATERMARK}) == {(topic, 1): 10}

        await admin.alter_configs(topic, set_values={"max.message.bytes": "5000"}, delete=["retention.ms"])
        described = await eventually(
            lambda: admin.describe_topic(topic), lambda found: found.configs.get("max.message.bytes") == "5000"
        )
        assert "retention.ms" not in described.configs
        await eventually(
            lambda: admin.describe_configs(topic),
            lambda found: next(entry for entry in found if entry.name == "retention.ms").is_default,
        )
        with pytest.raises(BrokerRefusedError, match="INVALID_CONFIG"):
            await admin.alter_configs(topic, set_values={"retention.ms": "soon"})

        await admin.create_partitions(topic, 5)
        await eventually(lambda: admin.describe_topic(topic), lambda found: len(found.partitions) == 5)
        with pytest.raises(BrokerRefusedError, match="INVALID_PARTITIONS"):
            await admin.create_partitions(topic, 3)
        await admin.delete_topic(topic)
        await eventually(admin.list_topics, lambda found: topic not in [listing.name for listing in found])


async def test_the_cluster(bootstrap: str, fresh_topic: TopicOf) -> None:
    topic = await create(bootstrap, fresh_topic("cluster"))
    async with Admin(bootstrap) as admin:
        cluster = await admin.describe_cluster()
        assert cluster.cluster_id
        assert sorted(f"{each.host}:{each.port}" for each in cluster.brokers) == sorted(bootstrap.split(","))
        directories = await admin.describe_log_dirs()
        assert topic in {each.topic for directory in directories for each in directory.partitions}
        assert await admin.describe_configs(broker_id=cluster.brokers[0].id)


async def test_cut_connections_neither_lose_nor_double_nor_reorder(
    bootstrap: str, fresh_topic: TopicOf, seed: int
) -> None:
    """A proxy closes connections at random, in the middle of requests and replies."""
    topic = await create(bootstrap, fresh_topic("cut"), partitions=2)
    async with CuttingProxy(bootstrap, random.Random(seed), bytes_between_cuts=15_000) as proxy:
        # The broker's metadata name its own address, so only the first connection would use the proxy.
        async with Producer(proxy.bootstrap, batch_bytes=4000, retry_backoff_ms=5) as producer:
            proxy.take_over(producer)
            for number in range(4000):
                await producer.enqueue(topic, b"%d" % number + bytes(50), partition=number % 2)
            await producer.flush()
        assert proxy.cuts > 3
    records = await read_all(bootstrap, topic)
    for index in range(2):
        numbers = [int((record.value or b"").rstrip(b"\0")) for record in records if record.partition == index]
        assert numbers == list(range(index, 4000, 2))


async def test_a_restart_in_the_middle(tmp_path: Path) -> None:
    """Killed with -9 and restarted while a producer and a consumer work."""
    broker = BrokerProcess(tmp_path / "data").start()
    try:
        topic = await create(broker.bootstrap, "restart")
        produced = asyncio.create_task(_produce_numbers(broker.bootstrap, topic, 6000))
        consumed = asyncio.create_task(_consume_numbers(broker.bootstrap, topic, 6000))
        for _ in range(2):
            await asyncio.sleep(0.4)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
        assert await asyncio.wait_for(produced, 60) == list(range(6000))
        assert await asyncio.wait_for(consumed, 60) == list(range(6000))
        records = await read_all(broker.bootstrap, topic)
        assert [int(record.value or b"") for record in records] == list(range(6000))
        assert broker.stop() == 0
    finally:
        if broker.running:
            broker.kill()


async def _produce_numbers(bootstrap: str, topic: str, count: int) -> list[int]:
    """Returns the acknowledged offsets."""
    async with Producer(bootstrap, batch_bytes=2000, retry_backoff_ms=20) as producer:
        sent = []
        for number in range(count):
            sent.append(await producer.enqueue(topic, b"%d" % number))
            if number % 50 == 0:
                await asyncio.sleep(0.01)
        await producer.flush()
        return [future.result().offset for future in sent]


async def _consume_numbers(bootstrap: str, topic: str, count: int) -> list[int]:
    numbers: list[int] = []
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        while len(numbers) < count:
            numbers += [int(record.value or b"") for record in await consumer.fetch_records(timeout_ms=30_000)]
    return numbers


async def test_a_loop_of_enqueues_sends_from_its_first_record_on(bootstrap: str, fresh_topic: TopicOf) -> None:
    """Also while the topic's metadata are unknown: pending records must not accumulate without bound."""
    topic = await create(bootstrap, fresh_topic("own-enqueue"))
    enqueued, deadline_s = 0, time.monotonic() + 60
    async with Producer(bootstrap) as producer:
        # Longer than necessary, in case a leader moves just then.
        while enqueued < 100_000 or producer.acknowledged_count == 0:
            assert time.monotonic() < deadline_s, "nothing was sent while the loop ran"
            await producer.enqueue(topic, b"x" * 100, partition=0)
            enqueued += 1
        await producer.flush()
        assert producer.acknowledged_count == enqueued

"""Recovery from a `KafkaLog`: on one broker, on three whose leaders move, and on Apache Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ottla.client import Admin, Producer
from ottla.recovery import Follower, KafkaLog, LogTrimmedError, Point, RowTables, SnapshotStore, put, recover, trim_log
from ottla.recovery.entries import Change, Kind, transaction_entries
from tests.conformance.conftest import LEADERS_MOVE, ONE_BROKER
from tests.conformance.leaders import wait_until_known

pytestmark = pytest.mark.worlds(ONE_BROKER, LEADERS_MOVE)
TopicOf = Callable[[str], str]
BEGAN_MS = 1_700_000_000_000


async def create(bootstrap: str, topic: str) -> str:
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=1, configs={"retention.ms": "-1"})
    await asyncio.to_thread(wait_until_known, bootstrap, topic)
    return topic


async def write(bootstrap: str, topic: str, entries: list[bytes], began_ms: int = BEGAN_MS) -> None:
    async with Producer(bootstrap, compression="lz4") as producer:
        for number, entry in enumerate(entries):
            await producer.enqueue(topic, entry, timestamp_ms=began_ms + number)
        await producer.flush()


async def test_recovery_to_the_end_and_to_points_before_it(bootstrap: str, fresh_topic: TopicOf) -> None:
    topic = await create(bootstrap, fresh_topic("recovered"))
    changes: list[Change] = [(Kind.PUT, "", b"t%d" % number, b"") for number in range(3)]
    await write(
        bootstrap, topic, [put(b"n", b"%d" % number) for number in range(500)] + transaction_entries(1, changes)
    )
    log = KafkaLog(bootstrap, topic)
    tail = await log.tail()
    assert (tail.start_offset, tail.end_offset) == (0, 504)
    for point, expected, count in (
        (Point(), b"499", 4),
        (Point(offset=100), b"99", 1),
        (Point(time_ms=BEGAN_MS + 41), b"41", 1),
        (Point(offset=503), b"499", 1),
        (Point(transaction=1), b"499", 4),
    ):
        tables = RowTables()
        await recover(log, tables, until=point)
        assert (tables.rows[b"n"], len(tables.rows)) == (expected, count), point
    assert [len(chunk) > 0 async for chunk in log.read_chunks(504)] == []
    assert [entry.offset async for chunk in log.read_chunks(500) for entry in chunk] == [500, 501, 502, 503]


async def test_a_log_that_is_trimmed_after_snapshots(bootstrap: str, fresh_topic: TopicOf) -> None:
    topic = await create(bootstrap, fresh_topic("trimmed"))
    log, store = KafkaLog(bootstrap, topic), SnapshotStore(f"memory://{topic}", keep=2)
    for number in range(3):
        await write(bootstrap, topic, [put(b"%d" % key, b"%d" % number) for key in range(100)])
        tables = RowTables()
        recovered = await recover(log, tables, snapshots=store)
        assert recovered.entry_count == 100, "the rest is in the snapshot"
        store.publish(tables.dump(), recovered.position)
        assert await trim_log(log, store) == (number * 100 or None)
    assert (await log.tail()).start_offset == 200
    with pytest.raises(LogTrimmedError, match="from offset 0, but the log begins at 200"):
        await recover(log, RowTables())


async def test_a_follower_hears_of_what_is_written(bootstrap: str, fresh_topic: TopicOf) -> None:
    topic = await create(bootstrap, fresh_topic("followed"))
    await write(bootstrap, topic, [put(b"a", b"1")])
    follower = Follower(KafkaLog(bootstrap, topic), RowTables())
    await follower.start()
    await write(bootstrap, topic, [put(b"b", b"%d" % number) for number in range(200)])
    async with asyncio.timeout(60):
        await follower.wait_for(200)
    await follower.stop()
    assert isinstance(follower.applier, RowTables)
    assert follower.applier.rows == {b"a": b"1", b"b": b"199"}

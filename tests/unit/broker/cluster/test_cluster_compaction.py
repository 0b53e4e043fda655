"""Replicas compact independently, and a replica follows a leader that has compacted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest

from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead
from ottla.broker.storage.file_log import FileLog
from ottla.client.consumer.consumer import Consumer
from ottla.client.consumer.settings import IsolationLevel
from ottla.client.producer.producer import Producer
from ottla.protocol.records.batch import HEADER_BYTES
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench

TOPIC = "table"
EAGER = {"log.cleaner.backoff.ms": "500", "ottla.flush.interval.ms": "500"}


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(3) as world:
        yield ClusterBench(world, properties=EAGER)


def create(bench: ClusterBench) -> None:
    bench.run(
        bench.create(
            TOPIC,
            cleanup_policy="compact",
            segment_bytes="2048",
            min_cleanable_dirty_ratio="0.01",
            min_insync_replicas="2",
        )
    )


async def put(bench: ClusterBench, keys: list[str], value: bytes) -> None:
    """Writes each key in a separate batch, by producers without idempotence."""
    async with Producer(bench.bootstrap, idempotence=False) as producer:
        for key in keys:
            await producer.send(TOPIC, value * 20, key=key.encode(), partition=0)


async def table(bench: ClusterBench, isolation_level: IsolationLevel = "read_uncommitted") -> dict[bytes, bytes]:
    found: dict[bytes, bytes | None] = {}
    async with Consumer(bench.bootstrap, auto_offset_reset="earliest", isolation_level=isolation_level) as consumer:
        consumer.assign([(TOPIC, 0)])
        (end,) = (await consumer.end_offsets([(TOPIC, 0)])).values()
        while await consumer.position((TOPIC, 0)) < end:
            for record in await consumer.fetch_records(100):
                assert record.key is not None
                found[record.key] = record.value
    return {key: value for key, value in found.items() if value is not None}


def log_of(bench: ClusterBench, number: int) -> FileLog:
    log = bench.partition(number, TOPIC).log
    assert isinstance(log, FileLog)
    return log


def until_compacted(bench: ClusterBench, numbers: list[int], offset: int) -> None:
    bench.until(lambda: all(log_of(bench, number).durable.compacted_end >= offset for number in numbers))


def test_every_replica_compacts_and_any_may_lead(bench: ClusterBench) -> None:
    create(bench)
    expected: dict[bytes, bytes] = {}
    for generation in range(5):
        value = b"%d" % generation
        keys = [f"key {number}" for number in range(30)]
        bench.run(put(bench, keys, value))
        expected.update({key.encode(): value * 20 for key in keys})
    until_compacted(bench, [1, 2, 3], 100)
    assert bench.run(table(bench)) == expected
    for _ in range(2):
        leader = bench.leader(TOPIC)
        bench.kill(leader)
        bench.until(lambda gone=leader: bench.leader(TOPIC) not in (-1, gone))
        assert bench.run(table(bench)) == expected
        bench.boot(leader)
        bench.until_in_sync(TOPIC)


def test_a_replica_comes_back_into_the_middle_of_what_is_gone(bench: ClusterBench) -> None:
    create(bench)
    bench.run(put(bench, ["a"] * 10, b"1"))
    bench.until_in_sync(TOPIC)
    leader = bench.leader(TOPIC)
    away = next(number for number in bench.ids if number != leader)
    bench.until(lambda: log_of(bench, away).end_offset == 10)
    bench.kill(away)
    for generation in range(4):
        bench.run(put(bench, ["a"] * 40, b"%d" % generation))
    until_compacted(bench, [leader], 100)
    leading = log_of(bench, leader)
    first = leading.segments[0]
    assert (first.appended_end, first.end_offset > 10) == (HEADER_BYTES, True), "its end lies inside of a placeholder"
    bench.boot(away)
    bench.until_in_sync(TOPIC)
    assert log_of(bench, away).end_offset == leading.end_offset
    assert log_of(bench, away).damages == []
    assert list(log_of(bench, away).epochs) == list(leading.epochs)
    bench.kill(leader)
    bench.until(lambda: bench.leader(TOPIC) not in (-1, leader))
    assert bench.run(table(bench)) == {b"a": b"3" * 20}


class Aborted(Exception):  # noqa: N818  # it is the intended end of a transaction
    pass


def test_nothing_at_or_above_an_open_transaction_is_compacted(bench: ClusterBench) -> None:
    """The transaction may still be aborted: its records must not replace others yet (safety: after-failover)."""
    create(bench)
    keys = [f"key {number}" for number in range(30)]

    async def write() -> None:
        await put(bench, keys, b"1")
        async with Producer(bench.bootstrap, transactional_id="open") as producer:
            with suppress(Aborted):
                async with producer.transaction():
                    for key in keys:
                        await producer.send(TOPIC, b"aborted" * 20, key=key.encode(), partition=0)
                    for _ in range(3):
                        await put(bench, ["other"] * 40, b"2")
                    await asyncio.sleep(10)
                    check()
                    raise Aborted

    def check() -> None:
        for number in bench.ids:
            partition = bench.partition(number, TOPIC)
            assert partition.high_watermark > 150 > 30 == partition.last_stable_offset
            committed, appended = (partition.read(30, 1 << 20, committed_only=each) for each in (True, False))
            assert isinstance(committed, Slice)
            assert committed.buffers == []
            assert isinstance(appended, ColdRead) or appended != committed
            assert log_of(bench, number).durable.compacted_end <= 30
            assert sum(segment.appended_end for segment in log_of(bench, number).segments) > 150 * 20 * 7 / 2

    bench.run(write())
    expected = {key.encode(): b"1" * 20 for key in keys} | {b"other": b"2" * 20}
    assert bench.run(table(bench, isolation_level="read_committed")) == expected
    until_compacted(bench, [1, 2, 3], 100)
    assert bench.run(table(bench, isolation_level="read_committed")) == expected

"""Retention leaves alone what not everybody in sync has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.client.producer.producer import Producer
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench

TOPIC = "orders"
VALUES = [b"%04d" % number * 50 for number in range(60)]
PATIENT = {"replica.lag.time.max.ms": "600000", "log.retention.check.interval.ms": "500"}
"""Followers that cannot be reached stay in sync, so that the high watermark waits for them."""


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(5) as world:
        yield ClusterBench(world, properties=PATIENT)


async def write(bench: ClusterBench) -> None:
    """Acknowledged by the leader alone, each record in a batch of its own."""
    async with Producer(bench.bootstrap, acks=1, idempotence=False, linger_ms=0) as producer:
        for value in VALUES:
            await producer.send(TOPIC, value, partition=0)


@pytest.mark.parametrize(("size", "time"), [("2000", "-1"), ("-1", "2000")], ids=["size", "time"])
@pytest.mark.parametrize("durability", ["disk", "cache", "memory"])
def test_retention_stays_below_the_high_watermark(bench: ClusterBench, durability: str, size: str, time: str) -> None:
    """(safety: after-failover)"""
    limits = {"retention_bytes": size, "retention_ms": time, "segment_bytes": "1024"}
    bench.run(bench.create(TOPIC, partitions=1, factor=3, ottla_durability=durability, **limits))
    bench.until_in_sync(TOPIC)
    leader = bench.leader(TOPIC)
    partition = bench.partition(leader, TOPIC)
    others = [bench.name(number) for number in bench.ids if number != leader]
    cut = bench.world.network.cut([bench.name(leader)], others)
    bench.run(write(bench))
    bench.world.run_for(10)
    assert bench.leader(TOPIC) == leader
    assert partition.high_watermark < partition.log.end_offset == len(VALUES)
    assert partition.log.start_offset <= partition.high_watermark
    cut.heal()
    bench.until(lambda: partition.high_watermark == len(VALUES))
    bench.until(lambda: partition.log.start_offset > 0)

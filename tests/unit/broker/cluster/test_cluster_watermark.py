"""How followers learn the high watermark."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ottla.broker.storage.batches import Slice
from ottla.client.producer.producer import Producer
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(1) as world:
        yield ClusterBench(world)


@pytest.mark.parametrize("durability", ["disk", "cache", "memory"])
def test_idle_followers_learn_the_watermark_at_once(bench: ClusterBench, durability: str) -> None:
    bench.run(bench.create("orders", ottla_durability=durability))
    bench.until_in_sync("orders")
    bench.run(bench.write("orders", [b"1", b"2", b"3"]))
    assert bench.partition(bench.leader("orders"), "orders").high_watermark == 3
    bench.until(
        lambda: all(bench.partition(number, "orders").high_watermark == 3 for number in bench.ids),
        timeout_s=0.1,
    )


def test_a_follower_that_comes_back_learns_the_watermark_at_once(bench: ClusterBench) -> None:
    bench.run(bench.create("orders"))
    bench.until_in_sync("orders")
    bench.run(bench.write("orders", [b"1", b"2", b"3"]))
    follower = next(number for number in bench.ids if number != bench.leader("orders"))
    bench.kill(follower)
    bench.until(lambda: len(bench.isr("orders")) == 2)
    bench.boot(follower)
    bench.until(lambda: bench.partition(follower, "orders").following is not None)
    bench.until(lambda: bench.partition(follower, "orders").high_watermark == 3, timeout_s=0.2)


def test_a_stream_takes_the_watermark_along(bench: ClusterBench) -> None:
    """No additional fetches: the next records arrive before the high watermark has to be sent separately."""
    count = 400

    async def stream() -> None:
        async with Producer(bench.bootstrap, linger_ms=0) as producer:
            for number in range(count):
                await producer.send("orders", b"%d" % number, partition=0)

    bench.run(bench.create("orders"))
    bench.until_in_sync("orders")
    leader = bench.broker(bench.leader("orders"))
    before = leader.traffic.by_replicas.requests
    bench.run(stream())
    assert leader.traffic.by_replicas.requests - before <= 2 * count * 1.05


def test_a_slow_stream_is_not_followed_by_many_fetches(bench: ClusterBench) -> None:
    """At most one more for each batch."""
    count = 50

    async def stream() -> None:
        async with Producer(bench.bootstrap, linger_ms=0) as producer:
            for number in range(count):
                await producer.send("orders", b"%d" % number, partition=0)
                await asyncio.sleep(0.1)

    bench.run(bench.create("orders"))
    bench.until_in_sync("orders")
    leader = bench.broker(bench.leader("orders"))
    before = leader.traffic.by_replicas.requests
    bench.run(stream())
    assert leader.traffic.by_replicas.requests - before <= 2 * count * 2.1


@pytest.mark.parametrize("after_s", [2.0, 2.1, 2.2, 2.3])
def test_a_broker_that_goes_leaves_the_watermark_behind(bench: ClusterBench, after_s: float) -> None:
    """With two replicas and min.insync.replicas=2 the remaining one could not advance it alone: acknowledged records
    would be unreadable until the other is back."""
    bench.run(bench.create("orders", factor=2, min_insync_replicas="2"))
    bench.until_in_sync("orders", count=2)
    leader = bench.leader("orders")
    cluster = bench.cluster(leader)
    others = [bench.name(number) for number in bench.ids if number != leader]
    bench.world.network.slow_down([bench.name(leader)], others, add_s=0.2)
    acknowledged: list[bytes] = []

    async def stream() -> None:
        async with Producer(bench.bootstrap, linger_ms=0) as producer:
            while bench.leader("orders") == leader:
                value = b"%d" % len(acknowledged)
                await producer.send("orders", value, partition=0)
                acknowledged.append(value)

    async def stream_and_go() -> None:
        streaming = asyncio.ensure_future(stream())
        await asyncio.sleep(after_s)
        await cluster.hand_over()
        streaming.cancel()

    bench.run(stream_and_go())
    bench.kill(leader)
    bench.until(lambda: len(bench.isr("orders")) == 1)
    assert bench.run(bench.read("orders", len(acknowledged)), timeout_s=20) == acknowledged


@pytest.mark.parametrize("durability", ["disk", "cache", "memory"])
def test_records_that_not_everybody_in_sync_has_are_not_shown(durability: str) -> None:
    """(safety: after-failover)"""
    with SimWorld(1) as world:
        bench = ClusterBench(world, properties={"replica.lag.time.max.ms": "600000"})
        bench.run(bench.create("orders", ottla_durability=durability))
        bench.until_in_sync("orders")
        bench.run(bench.write("orders", [b"1", b"2", b"3"]))
        leader = bench.leader("orders")
        partition = bench.partition(leader, "orders")
        others = [bench.name(number) for number in bench.ids if number != leader]
        bench.world.network.cut([bench.name(leader)], others)

        async def write_more() -> None:
            async with Producer(bench.bootstrap, acks=1, idempotence=False) as producer:
                await producer.send("orders", b"4", partition=0)

        bench.run(write_more())
        assert (partition.high_watermark, partition.last_stable_offset, partition.log.end_offset) == (3, 3, 4)
        for committed_only in (False, True):
            read = partition.read(0, 1 << 20, committed_only=committed_only)
            assert isinstance(read, Slice)
            assert read.next_offset == 3
            nothing = partition.read(3, 1 << 20, committed_only=committed_only)
            assert isinstance(nothing, Slice)
            assert (nothing.buffers, nothing.next_offset) == ([], 3)
        replicated = partition.read_as_follower(3, 1 << 20)
        assert isinstance(replicated, Slice)
        assert replicated.next_offset == 4

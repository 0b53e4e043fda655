"""Consumers read from followers in their own rack (KIP-392)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.client.consumer import Consumer
from ottla.model.broker_config import RACK_AWARE_SELECTOR
from ottla.sim.world import SimWorld
from tests.unit.sim_cluster import ClusterBench

RACKS = {1: "a", 2: "b", 3: "c"}
SELECTOR = {"replica.selector.class": RACK_AWARE_SELECTOR, "replica.lag.time.max.ms": "3000"}
VALUES = [b"%d" % number for number in range(60)]


@pytest.fixture
def world() -> Iterator[SimWorld]:
    with SimWorld(1) as world:
        yield world


def started(world: SimWorld, *, selects: bool = True, durability: str = "disk") -> tuple[ClusterBench, int, int]:
    """A topic with records, its leader, and a follower."""
    bench = ClusterBench(world, properties=SELECTOR if selects else {}, racks=RACKS)
    bench.run(bench.create("orders", ottla_durability=durability))
    bench.until_in_sync("orders")
    bench.run(bench.write("orders", VALUES))
    leader = bench.leader("orders")
    return bench, leader, next(number for number in bench.ids if number != leader)


def read_bytes(bench: ClusterBench, number: int) -> int:
    return bench.broker(number).traffic.by_consumers.bytes


async def values(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        found += [record.value for record in await consumer.fetch_records(count - len(found))]
    return found


@pytest.mark.parametrize("durability", ["disk", "cache", "memory"])
def test_a_consumer_reads_from_the_follower_in_its_rack(world: SimWorld, durability: str) -> None:
    bench, leader, follower = started(world, durability=durability)
    assert bench.run(bench.read("orders", 60, client_rack=RACKS[follower])) == VALUES
    assert read_bytes(bench, follower) > 0
    assert read_bytes(bench, leader) == 0


def test_a_follower_gives_what_comes_as_soon_as_it_is_committed(world: SimWorld) -> None:
    bench, leader, follower = started(world)

    async def follow() -> tuple[list[bytes | None], float]:
        async with Consumer(bench.bootstrap, auto_offset_reset="latest", client_rack=RACKS[follower]) as consumer:
            consumer.assign([("orders", 0)])
            await consumer.seek_to_end()
            await consumer.fetch_records(timeout_ms=1000)
            before_s = world.now_s
            await bench.write("orders", [b"new"])
            found = await consumer.fetch_records()
            return [record.value for record in found], world.now_s - before_s

    found, took_s = bench.run(follow())
    assert found == [b"new"]
    assert took_s < 0.2, "virtual seconds: not the end of a long poll"
    assert read_bytes(bench, follower) > 0
    assert read_bytes(bench, leader) == 0


@pytest.mark.parametrize("rack", ["", "elsewhere"])
def test_without_a_replica_in_its_rack_a_consumer_reads_from_the_leader(world: SimWorld, rack: str) -> None:
    bench, leader, _ = started(world)
    assert bench.run(bench.read("orders", 60, client_rack=rack)) == VALUES
    assert [read_bytes(bench, number) > 0 for number in bench.ids] == [number == leader for number in bench.ids]


def test_a_consumer_in_the_leaders_rack_reads_from_the_leader(world: SimWorld) -> None:
    bench, leader, _ = started(world)
    assert bench.run(bench.read("orders", 60, client_rack=RACKS[leader])) == VALUES
    assert [read_bytes(bench, number) > 0 for number in bench.ids] == [number == leader for number in bench.ids]


def test_without_the_selector_consumers_read_from_the_leader(world: SimWorld) -> None:
    bench, leader, follower = started(world, selects=False)
    assert bench.run(bench.read("orders", 60, client_rack=RACKS[follower])) == VALUES
    assert [read_bytes(bench, number) > 0 for number in bench.ids] == [number == leader for number in bench.ids]


@pytest.mark.parametrize("fault", ["kill", "pause", "cut off"])
def test_the_leader_serves_when_the_follower_does_not(world: SimWorld, fault: str) -> None:
    bench, leader, follower = started(world)

    async def read_on() -> list[bytes | None]:
        found: list[bytes | None] = []
        async with Consumer(
            bench.bootstrap, auto_offset_reset="earliest", client_rack=RACKS[follower], request_timeout_ms=10_000
        ) as consumer:
            consumer.assign([("orders", 0)])
            found += await values(consumer, 60)
            if fault == "kill":
                bench.kill(follower)
            elif fault == "pause":
                bench.host(follower).pause()
            else:
                others = [bench.name(number) for number in bench.ids if number != follower]
                for other in others:
                    world.network.cut([bench.name(follower)], [other])
            await bench.write("orders", VALUES)
            found += await values(consumer, 60)
        return found

    assert bench.run(read_on()) == VALUES * 2
    assert read_bytes(bench, leader) > 0


def test_a_follower_that_lacks_the_offset_sends_the_consumer_to_the_leader(world: SimWorld) -> None:
    """Its log begins later: what is missing there is not lost."""
    bench, leader, follower = started(world)
    partition = bench.partition(follower, "orders")

    async def read() -> list[bytes | None]:
        async with Consumer(bench.bootstrap, auto_offset_reset="none", client_rack=RACKS[follower]) as consumer:
            consumer.assign([("orders", 0)])
            consumer.seek(("orders", 0), 30)
            found = await values(consumer, 30)
            partition.log.advance_start(60, lambda _: None)
            consumer.seek(("orders", 0), 0)
            return found + await values(consumer, 60)

    assert bench.run(read()) == [*VALUES[30:], *VALUES]
    assert read_bytes(bench, leader) > 0

"""Consumers read from followers in their own rack (KIP-392)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.client.consumer.consumer import Consumer
from ottla.net.apis import ClientApi, open_connection
from ottla.net.connection import Address
from ottla.protocol.model.broker_config import RACK_AWARE_SELECTOR
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.fetch import FetchPartition, FetchRequest
from ottla.protocol.wire.fetch_client import FetchedPartition, encode_fetch_request, parse_fetch_response
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench

RACKS = {1: "a", 2: "b", 3: "c"}
SELECTOR = {"replica.selector.class": RACK_AWARE_SELECTOR, "replica.lag.time.max.ms": "3000"}
VALUES = [b"%d" % number for number in range(60)]
FETCH, VERSION = 1, 17
LIST_OFFSETS = ClientApi(2, "ListOffsets", (7, 7))


@pytest.fixture
def world() -> Iterator[SimWorld]:
    with SimWorld(1) as world:
        yield world


def started(world: SimWorld, *, selects: bool = True, durability: str = "disk") -> tuple[ClusterBench, int, int]:
    """Creates a topic with records; returns its leader and a follower."""
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
    """Its log starts later: the missing records are not lost."""
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


async def fetched(bench: ClusterBench, number: int, offset: int, rack: str) -> FetchedPartition:
    """Sends one fetch of a consumer in a new session."""
    connection = await open_connection(
        Address(bench.name(number), 9092),
        client_id="test",
        software_version="1",
        connect_timeout_ms=2000,
        request_timeout_ms=10_000,
    )
    topic = bench.broker(number).topics.get("orders")
    assert topic is not None
    wanted = FetchPartition(0, bench.partition(number, "orders").leader_epoch, offset, -1, -1, 1 << 20)
    request = FetchRequest(-1, 100, 1, 1 << 20, 0, 0, 0, [(topic.id, [wanted])], [], rack)
    reply = await connection.request(FETCH, VERSION, [encode_fetch_request(VERSION, request)], what="fetching")
    connection.end()
    ((_, (found,)),) = parse_fetch_response(reply, VERSION).topics
    return found


def test_what_a_follower_answers(world: SimWorld) -> None:
    bench, leader, follower = started(world)
    rack = RACKS[follower]
    bench.until(lambda: bench.partition(follower, "orders").high_watermark == 60)
    found = bench.run(fetched(bench, follower, 0, rack))
    assert (found.error, found.high_watermark, found.log_start_offset) == (ErrorCode.none, 60, 0)
    assert found.records
    at_the_end = bench.run(fetched(bench, follower, 60, rack))
    assert (at_the_end.error, len(at_the_end.records)) == (ErrorCode.none, 0)
    assert bench.run(fetched(bench, follower, 61, rack)).error == ErrorCode.offset_not_available
    assert bench.run(fetched(bench, leader, 61, rack)).error == ErrorCode.offset_out_of_range
    bench.partition(follower, "orders").log.advance_start(10, lambda _: None)
    assert bench.run(fetched(bench, follower, 9, rack)).error == ErrorCode.offset_out_of_range
    assert bench.run(fetched(bench, follower, 20, "")).error == ErrorCode.not_leader_or_follower


def test_a_leader_names_the_follower_and_sends_nothing_itself(world: SimWorld) -> None:
    bench, leader, follower = started(world)
    found = bench.run(fetched(bench, leader, 0, RACKS[follower]))
    assert (found.error, found.preferred_read_replica, len(found.records)) == (ErrorCode.none, follower, 0)


def test_offsets_are_looked_up_at_the_leader_alone(world: SimWorld) -> None:
    bench, _, follower = started(world)
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "orders", "partitions": [asked]}]}
    answer = bench.run(bench.ask(follower, LIST_OFFSETS, body))
    assert answer.topics[0].partitions[0].error_code is ErrorCode.not_leader_or_follower


def test_a_follower_that_is_not_in_sync_sends_its_readers_away(world: SimWorld) -> None:
    """It does not know which records it lacks, and may not make progress."""
    bench, leader, follower = started(world)
    world.network.cut([bench.name(follower)], [bench.name(leader)])
    bench.run(bench.write("orders", [b"more"]), timeout_s=30)
    bench.until(lambda: follower not in bench.isr("orders") and not bench.partition(follower, "orders").is_read_here)
    assert bench.run(fetched(bench, follower, 0, RACKS[follower])).error == ErrorCode.not_leader_or_follower
    assert bench.run(fetched(bench, leader, 0, RACKS[follower])).preferred_read_replica == -1

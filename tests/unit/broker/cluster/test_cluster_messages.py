"""The number of messages that replication sends: on a small machine they are the cost of a record."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Literal
from uuid import UUID

from ottla.broker.partition.waits import LATER_MS
from ottla.client.consumer.consumer import Consumer
from ottla.client.producer.producer import Producer
from ottla.protocol.wire.fetch import FetchPartition, FetchRequest, parse_fetch_request
from ottla.protocol.wire.fetch_client import encode_fetch_request
from ottla.protocol.wire.synced_ends import API_KEY as ACKNOWLEDGED
from ottla.sim.links import LOOPBACK
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench

TOPIC = "orders"
FETCH = 1
COUNT = 100


def cluster(world: SimWorld, durability: str = "cache") -> ClusterBench:
    world.network.settings = replace(world.network.settings, delay=LOOPBACK)
    bench = ClusterBench(world)
    bench.run(bench.create(TOPIC, ottla_durability=durability))
    bench.until_in_sync(TOPIC)
    return bench


async def write_one_by_one(bench: ClusterBench, acks: Literal["all", 1]) -> None:
    async with Producer(bench.bootstrap, acks=acks, idempotence=False) as producer:
        for _ in range(COUNT):
            await producer.send(TOPIC, b"value", partition=0)


def taken(bench: ClusterBench, number: int, api_key: int) -> int:
    requests = bench.broker(number).meters.requests
    return sum(count for (key, _), count in requests.items() if key == api_key)


def followers_have(bench: ClusterBench, end: int) -> bool:
    return all(bench.partition(number, TOPIC).log.end_offset == end for number in bench.ids)


def test_what_nobody_waits_for_is_replicated_in_few_messages() -> None:
    with SimWorld(1) as world:
        bench = cluster(world)
        leader = bench.leader(TOPIC)
        before = taken(bench, leader, FETCH)
        bench.run(write_one_by_one(bench, 1))
        bench.until(lambda: followers_have(bench, COUNT))
        assert taken(bench, leader, FETCH) - before < COUNT


def test_an_end_that_is_acknowledged_at_once_comes_with_the_next_fetch() -> None:
    with SimWorld(1) as world:
        bench = cluster(world, "memory")
        leader = bench.leader(TOPIC)
        before = taken(bench, leader, ACKNOWLEDGED)
        bench.run(write_one_by_one(bench, "all"))
        assert taken(bench, leader, ACKNOWLEDGED) - before < COUNT


def test_a_reader_who_waits_does_not_wait_for_others_to_be_gathered() -> None:
    with SimWorld(1) as world:
        bench = cluster(world, "memory")
        waits_ms: list[float] = []

        async def read() -> None:
            async with Consumer(bench.bootstrap, auto_offset_reset="earliest") as consumer:
                consumer.assign([(TOPIC, 0)])
                for _ in range(COUNT):
                    (record,) = await consumer.fetch_records(1)
                    assert record.value is not None
                    waits_ms.append(world.clock.monotonic_ms() - float(record.value))

        async def write() -> None:
            async with Producer(bench.bootstrap, acks=1, idempotence=False, linger_ms=0) as producer:
                for _ in range(COUNT):
                    await asyncio.sleep(0.02)
                    await producer.send(TOPIC, repr(world.clock.monotonic_ms()).encode(), partition=0)

        async def both() -> None:
            reading = asyncio.create_task(read())
            await write()
            await reading

        bench.run(both())
        assert sorted(waits_ms)[COUNT // 2] < LATER_MS


def test_the_synced_end_of_a_follower_arrives_beside_its_watermark() -> None:
    told = FetchPartition(0, 3, 110, 3, 0, 1 << 20, high_watermark=100, acknowledged_end=105)
    request = FetchRequest(2, 0, 1, 1, 0, 0, 0, [(UUID(int=7), [told])], [], replica_epoch=4)
    body = encode_fetch_request(18, request)
    assert parse_fetch_request(memoryview(body), 18).topics == [(UUID(int=7), [told])]

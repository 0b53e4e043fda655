"""A partition without a leader for a long time: clients wait without keeping the remaining brokers busy."""

from __future__ import annotations

import asyncio

from ottla.client.consumer.consumer import Consumer
from ottla.client.errors import DeliveryError
from ottla.client.producer.producer import Producer
from ottla.sim.world import SimWorld
from tests.simulation.guarantees import TOPIC, GuaranteeBench

RECORDS = [b"number %d" % number for number in range(5)]
WAIT_S = 10.0
EVENTS_A_SECOND_MAX = 1000
"""Most are events of brokers that try to reach one another."""


def leave_one_that_may_not_lead(bench: GuaranteeBench) -> None:
    leader, left, other = bench.leader(), *bench.followers()
    bench.kill(left)
    bench.wait_until_in_sync([leader, other])
    assert bench.write(RECORDS) == RECORDS
    bench.kill(leader, other)
    bench.boot(left)
    bench.world.run_until(bench.programs[left].broker_is_in, timeout_s=30)
    bench.world.run_for(5)
    assert bench.leaders() == []


async def produce(bench: GuaranteeBench) -> None:
    async with Producer(bench.bootstrap, delivery_timeout_ms=int(WAIT_S * 1000), connect_timeout_ms=1000) as producer:
        try:
            await producer.send(TOPIC, b"late", partition=0)
        except DeliveryError:
            return
    raise AssertionError("nobody can have taken it")


async def consume(bench: GuaranteeBench) -> None:
    async with Consumer(bench.bootstrap, auto_offset_reset="earliest", connect_timeout_ms=1000) as consumer:
        consumer.subscribe([TOPIC])
        assert await consumer.fetch_records(timeout_ms=WAIT_S * 1000) == []


def test_a_producer_asks_with_pauses() -> None:
    with SimWorld(1) as world:
        bench = GuaranteeBench(world, brokers=3, min_insync=2, durability="disk")
        leave_one_that_may_not_lead(bench)
        before = world.event_count
        world.run(produce(bench), timeout_s=60)
        assert world.event_count - before < EVENTS_A_SECOND_MAX * WAIT_S


def test_a_consumer_asks_with_pauses() -> None:
    with SimWorld(1) as world:
        bench = GuaranteeBench(world, brokers=3, min_insync=2, durability="disk")
        leave_one_that_may_not_lead(bench)
        before = world.event_count
        world.run(asyncio.wait_for(consume(bench), 60), timeout_s=90)
        assert world.event_count - before < EVENTS_A_SECOND_MAX * WAIT_S

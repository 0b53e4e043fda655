"""A leader that stops leading while requests wait for their acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ottla.net.apis import open_connection
from ottla.net.connection import Address, Connection
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.produce import encode_produce_request, parse_produce_response
from ottla.sim.links import NetworkFault
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench
from tests.support.sim_logs import batch_of

PRODUCE, VERSION = 0, 11
COUNT = 20
ALL, LEADER_ONLY = -1, 1


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(1) as world:
        yield ClusterBench(world, properties={"broker.session.timeout.ms": "6000"})


async def connect(bench: ClusterBench, number: int) -> Connection:
    return await open_connection(
        Address(bench.name(number), 9092),
        client_id="test",
        software_version="1",
        connect_timeout_ms=2000,
        request_timeout_ms=60_000,
    )


def send(connection: Connection, acks: int, *, partitions: int) -> asyncio.Future[memoryview]:
    """Sends one batch to each of that many partitions: requests for one partition are handled in runs."""
    batches = [(index, batch_of([b"new"])) for index in range(partitions)]
    body = encode_produce_request(VERSION, None, acks, 60_000, [("orders", batches)])
    return connection.request(PRODUCE, VERSION, body, what="producing")


async def errors(replies: list[asyncio.Future[memoryview]]) -> set[ErrorCode]:
    answers = [parse_produce_response(await reply, VERSION) for reply in replies]
    return {ErrorCode(each.error) for answer in answers for _, results in answer.topics for each in results}


def cut_off_from_brokers(bench: ClusterBench, number: int) -> NetworkFault:
    others = [bench.name(other) for other in bench.ids if other != number]
    return bench.world.network.cut([bench.name(number)], others)


def lose_lease(bench: ClusterBench, number: int) -> None:
    cluster = bench.cluster(number)
    assert cluster.membership.lease is not None
    bench.store.lose_lease(cluster.membership.lease.id)


@pytest.mark.parametrize("durability", ["disk", "cache", "memory"])
@pytest.mark.parametrize("partitions", [1, 2])
def test_requests_that_wait_are_told_and_never_acknowledged(
    bench: ClusterBench, durability: str, partitions: int
) -> None:
    bench.run(bench.create("orders", partitions=partitions, ottla_durability=durability))
    for index in range(partitions):
        bench.until_in_sync("orders", index)
    leader = bench.leader("orders")
    bench.run(bench.write("orders", [b"old"]))
    fault = cut_off_from_brokers(bench, leader)

    async def produce() -> set[ErrorCode]:
        connection = await connect(bench, leader)
        replies = [send(connection, ALL, partitions=partitions) for _ in range(COUNT)]
        await asyncio.sleep(1)
        assert not any(reply.done() for reply in replies)
        assert bench.partition(leader, "orders").log.end_offset == 1 + COUNT
        lose_lease(bench, leader)
        found = await errors(replies)
        connection.end()
        return found

    assert bench.run(produce()) == {ErrorCode.not_leader_or_follower}
    fault.heal()
    bench.until(lambda: bench.leader("orders") not in (leader, -1))
    bench.until_in_sync("orders")
    assert bench.run(bench.read("orders", 1)) == [b"old"]
    bench.until(lambda: all(bench.partition(number, "orders").log.end_offset == 1 for number in bench.ids))


def test_the_same_leader_in_a_later_epoch_acknowledges_nothing_of_the_earlier_one(bench: ClusterBench) -> None:
    """It waits for its disk, stops leading, and leads again: pending requests have been answered in any case."""
    bench.run(bench.create("orders", factor=1, ottla_durability="disk"))
    leader = bench.leader("orders")
    bench.run(bench.write("orders", [b"old"]))

    async def produce() -> set[ErrorCode]:
        connection = await connect(bench, leader)
        bench.host(leader).disk.stall("journal")
        replies = [send(connection, acks, partitions=1) for acks in (ALL, LEADER_ONLY) for _ in range(COUNT)]
        await asyncio.sleep(1)
        lose_lease(bench, leader)
        found = await errors(replies)
        connection.end()
        return found

    assert bench.run(produce()) == {ErrorCode.not_leader_or_follower}
    bench.host(leader).disk.release("journal")
    bench.until(lambda: bench.leader("orders") == leader)
    bench.run(bench.write("orders", [b"last"]))
    end = bench.partition(leader, "orders").log.end_offset
    values = bench.run(bench.read("orders", end))
    assert (values[0], values[-1]) == (b"old", b"last")

"""Transactions in replicated partitions: failing leaders, truncated markers, followers with the same state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from ottla.broker.partition.partition import Partition
from ottla.broker.partition.transaction_verification import VerificationRequest
from ottla.machines.transactions.partition_table import OpenTransaction
from ottla.machines.transactions.records import TopicPartition
from ottla.net.apis import open_connection
from ottla.net.connection import Address
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.headers import parse_request_header, response_header
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench
from tests.support.transactional_peer import Peer

NONE = ErrorCode.none
TOPIC = "orders"


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(1) as world:
        properties = {"broker.session.timeout.ms": "6000", "transaction.partition.verification.enable": "false"}
        yield ClusterBench(world, properties=properties)


@pytest.fixture(params=["disk", "cache", "memory"])
def durability(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def peer_of(bench: ClusterBench, number: int) -> AsyncIterator[Peer]:
    address = Address(bench.name(number), 9092)
    connection = await open_connection(
        address, client_id="test", software_version="1", connect_timeout_ms=2000, request_timeout_ms=60_000
    )

    async def send(frame: bytes) -> bytes:
        key, version, correlation_id, _, body_at = parse_request_header(memoryview(frame))
        body = await connection.request(key, version, [frame[body_at:]], what="asking")
        return response_header(key, version, correlation_id) + bytes(body)

    try:
        yield Peer(send, TOPIC, bench.partition(number, TOPIC).topic.id, bench.world.clock.now_ms)
    finally:
        connection.end()


def begin(bench: ClusterBench, durability: str) -> int:
    """Creates a topic on three brokers and returns its leader."""
    bench.run(bench.create(TOPIC, ottla_durability=durability))
    bench.until_in_sync(TOPIC)
    return bench.leader(TOPIC)


def fail_over(bench: ClusterBench) -> int:
    old = bench.leader(TOPIC)
    bench.kill(old)
    bench.until(lambda: bench.leader(TOPIC) not in (-1, old))
    new = bench.leader(TOPIC)
    bench.until(lambda: bench.partition(new, TOPIC).is_watermark_known)
    return new


def open_at(bench: ClusterBench, number: int) -> list[OpenTransaction]:
    return bench.partition(number, TOPIC).log.transactions.open_transactions()


def test_a_transaction_goes_on_after_a_failover(bench: ClusterBench, durability: str) -> None:
    leader = begin(bench, durability)

    async def before() -> None:
        async with peer_of(bench, leader) as peer:
            await peer.produce(b"gone", producer=(8, 0, 0), transactional_id="other")
            await peer.end((8, 0), commit=False)
            assert (await peer.produce(b"1", producer=(7, 0, 0))).error == NONE

    bench.run(before())
    expected = open_at(bench, leader)
    assert [(each.producer_id, each.first_offset) for each in expected] == [(7, 2)]
    leader = fail_over(bench)
    assert open_at(bench, leader) == expected

    async def after() -> list[bytes]:
        async with peer_of(bench, leader) as peer:
            assert (await peer.fetch()).ends == (2, 3)
            assert (await peer.produce(b"2", producer=(7, 0, 1))).error == NONE
            assert await peer.end((7, 0), commit=True, coordinator_epoch=1) == [NONE]
            return await peer.committed()

    assert bench.run(after()) == [b"1", b"2"]


def test_followers_know_the_same(bench: ClusterBench, durability: str) -> None:
    leader = begin(bench, durability)

    async def work() -> None:
        async with peer_of(bench, leader) as peer:
            for number in range(6):
                epoch = number // 2
                await peer.produce(b"%d" % number, producer=(7, number, 0))
                await peer.end((7, number + 1), commit=bool(number % 2), coordinator_epoch=epoch, transaction_version=2)
            await peer.produce(b"open", producer=(9, 0, 0))

    bench.run(work())
    partitions = [bench.partition(number, TOPIC) for number in bench.ids]
    bench.until(lambda: {partition.high_watermark for partition in partitions} == {13})
    assert {partition.last_stable_offset for partition in partitions} == {12}
    first = partitions[0].log.transactions
    assert all(partition.log.transactions == first for partition in partitions)
    assert len(first.aborted) == 3

    async def described() -> list[list[Any]]:
        found = []
        for number in bench.ids:
            async with peer_of(bench, number) as peer:
                found.append(await peer.describe())
        return found

    of_each = bench.run(described())
    assert [of_each[0]] * len(of_each) == of_each, "any replica describes its producers"
    assert [state.current_txn_start_offset for state in of_each[0]] == [-1, 12]


def test_a_marker_that_not_everybody_has_ends_nothing(bench: ClusterBench, durability: str) -> None:
    """Readers of the old leader do not see it as committed, and for the next leader the transaction is open.

    The old leader truncates the marker (safety: last-stable-offset).
    """
    old = begin(bench, durability)

    async def produce() -> None:
        async with peer_of(bench, old) as peer:
            assert (await peer.produce(b"1", producer=(7, 0, 0))).error == NONE

    bench.run(produce())
    others = [bench.name(number) for number in bench.ids if number != old]
    fault = bench.world.network.cut([bench.name(old)], others)

    async def mark() -> list[ErrorCode]:
        async with peer_of(bench, old) as peer:
            marking = asyncio.ensure_future(peer.end((7, 0), commit=True))
            await asyncio.sleep(1)
            assert bench.partition(old, TOPIC).log.end_offset == 2
            async with peer_of(bench, old) as reader:
                assert (await reader.fetch()).ends == (0, 1)
            cluster = bench.cluster(old)
            assert cluster.membership.lease is not None
            bench.store.lose_lease(cluster.membership.lease.id)
            return await marking

    (told,) = bench.run(mark())
    assert told is not NONE
    bench.until(lambda: any(_leads(bench, number) for number in bench.ids if number != old))
    new = next(number for number in bench.ids if number != old and _leads(bench, number))
    bench.until(lambda: bench.partition(new, TOPIC).is_watermark_known)
    assert [each.producer_id for each in open_at(bench, new)] == [7]
    fault.heal()

    async def abort() -> list[bytes]:
        async with peer_of(bench, new) as peer:
            assert await peer.end((7, 0), commit=False, coordinator_epoch=1) == [NONE]
            return await peer.committed()

    assert bench.run(abort()) == []
    bench.until(lambda: bench.partition(old, TOPIC).log.transactions == bench.partition(new, TOPIC).log.transactions)
    assert len(bench.partition(old, TOPIC).log.transactions.aborted) == 1


def _leads(bench: ClusterBench, number: int) -> bool:
    partition = bench.find(number, TOPIC)
    return partition is not None and partition.leading is not None


def test_a_broker_that_comes_back_knows_its_transactions(bench: ClusterBench) -> None:
    leader = begin(bench, "disk")

    async def work() -> None:
        async with peer_of(bench, leader) as peer:
            await peer.produce(b"gone", producer=(8, 0, 0), transactional_id="other")
            await peer.end((8, 0), commit=False)
            await peer.produce(b"open", producer=(7, 0, 0))

    bench.run(work())
    expected = bench.partition(leader, TOPIC).log.transactions
    bench.kill(leader)
    bench.boot(leader)
    bench.until_in_sync(TOPIC)
    assert bench.partition(leader, TOPIC).log.transactions == expected


class SlowAtFirst:
    """A coordinator that is slow on the first request."""

    def __init__(self) -> None:
        self.asked = 0

    async def verify(self, asked: VerificationRequest) -> Mapping[TopicPartition, ErrorCode]:
        self.asked += 1
        await asyncio.sleep(2 if self.asked == 1 else 0)
        return {}


def test_a_connection_waits_for_the_coordinator_of_its_first_batch(bench: ClusterBench) -> None:
    """Later requests of the connection are not handled before it, so that records keep their order.

    (safety: produce-order)
    """
    leader = begin(bench, "disk")
    verifier = bench.broker(leader).verifier = SlowAtFirst()

    async def work() -> list[tuple[int, int]]:
        async with peer_of(bench, leader) as peer:
            batches = [peer.produce(b"%d" % number, producer=(7, 0, number)) for number in range(5)]
            results = await asyncio.gather(*batches)
            return [(result.error, result.base_offset) for result in results]

    assert bench.run(work()) == [(0, offset) for offset in range(5)]
    assert verifier.asked == 1


class Meanwhile:
    """A coordinator that approves, with an event before its reply arrives."""

    def __init__(self, happen: Callable[[], None]) -> None:
        self._happen: Callable[[], None] | None = happen

    async def verify(self, asked: VerificationRequest) -> Mapping[TopicPartition, ErrorCode]:
        await asyncio.sleep(0.1)
        if self._happen is not None:
            self._happen()
            self._happen = None
        return {}


def give_up_and_lead_again(partition: Partition) -> None:
    leading = partition.leading
    assert leading is not None
    partition.stand_by(partition.leader_epoch)
    partition.lead(leading, partition.leader_epoch + 1)


@pytest.mark.parametrize(("version", "told"), [(11, ErrorCode.not_leader_or_follower), (12, NONE)])
def test_a_leader_that_has_forgotten_what_it_asked(bench: ClusterBench, version: int, told: ErrorCode) -> None:
    """It verifies again by itself, or the producer retries with the new leader. An error that aborts the transaction
    would be wrong: the transaction is valid."""
    bench.run(bench.create(TOPIC, factor=1))
    leader = bench.leader(TOPIC)
    partition = bench.partition(leader, TOPIC)
    bench.broker(leader).verifier = Meanwhile(partial(give_up_and_lead_again, partition))

    async def work() -> list[ErrorCode]:
        async with peer_of(bench, leader) as peer:
            return [ErrorCode((await peer.produce(b"1", producer=(7, 0, 0), version=version)).error) for _ in range(2)]

    assert bench.run(work()) == [told, NONE]


@pytest.mark.parametrize("version", [11, 12])
def test_a_partition_that_comes_to_be_led_while_others_are_asked_for(bench: ClusterBench, version: int) -> None:
    """It was not verified: it is not accepted unverified, and the producer gets no error that aborts the
    transaction."""
    bench.run(bench.create(TOPIC, partitions=4, factor=1))
    leaders = [bench.leader(TOPIC, at) for at in range(4)]
    leader = next(number for number in bench.ids if leaders.count(number) > 1)
    early, late, *_ = (bench.partition(leader, TOPIC, at) for at in range(4) if leaders[at] == leader)
    leading = late.leading
    assert leading is not None
    bench.broker(leader).verifier = Meanwhile(lambda: late.lead(leading, late.leader_epoch + 1))
    late.stand_by(late.leader_epoch)

    async def work() -> list[list[ErrorCode]]:
        async with peer_of(bench, leader) as peer:
            places = early.index, late.index
            return [await peer.produce_to(places, producer=(7, 0, 0), version=version) for _ in range(2)]

    assert bench.run(work()) == [[NONE, ErrorCode.not_leader_or_follower], [NONE, NONE]]

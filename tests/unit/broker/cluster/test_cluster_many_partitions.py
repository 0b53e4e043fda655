"""The cost of a record does not depend on how many partitions its brokers share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.api.fetch_partitions import FetchEvaluator
from ottla.broker.broker import Broker
from ottla.broker.cluster.metadata import ClusterMetadata
from ottla.broker.partition.follower_partition import FollowerPartition
from ottla.broker.partition.partition import Partition
from ottla.client.producer.producer import Producer
from ottla.net.apis import open_connection
from ottla.net.connection import Address
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.fetch import FetchPartition, FetchRequest
from ottla.protocol.wire.fetch_client import FetchResponse, encode_fetch_request, parse_fetch_response
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench

TOPIC, QUIET = "orders", "quiet"
QUIET_COUNT, RECORDS = 120, 50
FETCH, VERSION = 1, 18


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(1) as world:
        yield ClusterBench(world)


class Calls:
    """Counts the calls of a method since the last reading."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.count = 0
        original = getattr(owner, name)

        def counting(*args: Any, **keywords: Any) -> Any:
            self.count += 1
            return original(*args, **keywords)

        monkeypatch.setattr(owner, name, counting)


def test_a_record_is_not_looked_for_in_all_partitions(bench: ClusterBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its leader nor its followers scan all partitions for a record."""
    bench.run(bench.create(TOPIC, ottla_durability="memory"))
    bench.run(bench.create(QUIET, partitions=QUIET_COUNT, ottla_durability="memory"))
    for index in range(QUIET_COUNT):
        bench.until_in_sync(QUIET, index)
    looks, questions = Calls(monkeypatch, FetchEvaluator, "look"), Calls(monkeypatch, FollowerPartition, "next_fetch")

    async def write_all() -> float:
        began_ms = bench.world.clock.monotonic_ms()
        async with Producer(bench.bootstrap) as producer:
            for _ in range(RECORDS):
                await producer.send(TOPIC, b"value", partition=0)
        return bench.world.clock.monotonic_ms() - began_ms

    took_ms = bench.run(write_all())
    # All partitions are scanned twice a second by six pairs of brokers; a record has two followers.
    all_of_them = (took_ms / 500 + 2) * 2 * (QUIET_COUNT + 1)
    assert looks.count < all_of_them + RECORDS * 2 * 4
    assert questions.count < all_of_them + RECORDS * 2 * 4
    assert all_of_them < RECORDS * QUIET_COUNT  # else this would show nothing


class Session:
    """A fetch session sent by the test in the name of a stopped follower."""

    def __init__(self, bench: ClusterBench, leader: int, follower: int, topic: str) -> None:
        self.broker: Broker = bench.broker(leader)
        found = self.broker.topics.get(topic)
        assert found is not None
        assert isinstance(self.broker.metadata, ClusterMetadata)
        registration = self.broker.metadata.membership.image.registration(follower)
        assert registration is not None
        self._member = registration.member
        self._topic_id: UUID = found.id
        self._address = Address(bench.name(leader), 9092)
        self._session_id = self._epoch = 0
        self._connection: Any = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Session]:
        self._connection = await open_connection(
            self._address, client_id="test", software_version="1", connect_timeout_ms=2000, request_timeout_ms=10_000
        )
        yield self
        self._connection.end()

    async def fetch(
        self, *named: FetchPartition, wait_ms: int = 0, bytes_max: int = 1 << 20, forget: tuple[int, ...] = ()
    ) -> dict[int, tuple[ErrorCode, bool, int]]:
        """Returns per partition the error, whether there are records, and the high watermark."""
        request = FetchRequest(
            self._member.broker_id,
            wait_ms,
            1,
            bytes_max,
            0,
            self._session_id,
            self._epoch,
            [(self._topic_id, list(named))] if named else [],
            [(self._topic_id, list(forget))] if forget else [],
            replica_epoch=self._member.broker_epoch,
        )
        body = encode_fetch_request(VERSION, request)
        response: FetchResponse = parse_fetch_response(
            await self._connection.request(FETCH, VERSION, [body], what="fetching"), VERSION
        )
        assert response.error == ErrorCode.none
        self._session_id, self._epoch = response.session_id, self._epoch + 1
        answers = [answer for _, found in response.topics for answer in found]
        return {
            answer.partition: (ErrorCode(answer.error), bool(answer.records), answer.high_watermark)
            for answer in answers
        }


NOTHING = ErrorCode.none, False, 0


def two_of_a_leader(bench: ClusterBench) -> tuple[int, int, list[Partition]]:
    """Returns the leader of two partitions, a stopped broker that follows both, and the partitions."""
    bench.run(bench.create(TOPIC, partitions=4, ottla_durability="memory"))
    for index in range(4):
        bench.until_in_sync(TOPIC, index)
    leaders = [bench.leader(TOPIC, index) for index in range(4)]
    leader = next(number for number in leaders if leaders.count(number) > 1)
    follower = next(number for number in bench.ids if number != leader)
    bench.kill(follower)
    return leader, follower, [bench.partition(leader, TOPIC, at) for at in range(4) if leaders[at] == leader][:2]


async def write(bench: ClusterBench, value: bytes, partition: Partition) -> None:
    """Appends before the leader notices that a follower is down."""
    async with Producer(bench.bootstrap, acks=1, idempotence=False) as producer:
        await producer.send(TOPIC, value, partition=partition.index)


def asked(partition: Partition, offset: int) -> FetchPartition:
    epoch = partition.leader_epoch
    return FetchPartition(partition.index, epoch, offset, epoch if offset else -1, 0, 1 << 20, high_watermark=0)


def test_what_had_no_room_comes_with_the_next_answer(bench: ClusterBench) -> None:
    leader, follower, (first, second) = two_of_a_leader(bench)

    async def work() -> None:
        async with Session(bench, leader, follower, TOPIC).open() as session:
            await session.fetch(asked(first, 0), asked(second, 0))
            await write(bench, b"1", first)
            await write(bench, b"2", second)
            one = await session.fetch(bytes_max=1)
            (got,) = [index for index, (_, has_records, _) in one.items() if has_records]
            other = await session.fetch(asked(first if got == first.index else second, 1), bytes_max=1)
            assert [has_records for index, (_, has_records, _) in other.items() if index != got] == [True]

    bench.run(work())


def test_a_fetch_that_waits_hears_of_each_of_its_partitions(bench: ClusterBench) -> None:
    """Also of one that no request has named for a while."""
    leader, follower, (first, second) = two_of_a_leader(bench)

    async def work() -> None:
        async with Session(bench, leader, follower, TOPIC).open() as session:
            await session.fetch(asked(first, 0), asked(second, 0))
            await write(bench, b"1", first)
            assert (await session.fetch(wait_ms=400))[first.index][1]
            for count in range(1, 4):
                began_ms = bench.world.clock.monotonic_ms()
                writing = asyncio.ensure_future(write(bench, b"2", second))
                named = asked(first, 1) if count == 1 else asked(second, count - 1)
                while not (await session.fetch(named, wait_ms=400)).get(second.index, NOTHING)[1]:
                    pass  # a reply that only has a new high watermark
                await writing
                assert bench.world.clock.monotonic_ms() - began_ms < 400  # it was woken before its timeout

    bench.run(work())


def test_a_partition_that_is_given_up_is_told_at_once(bench: ClusterBench) -> None:
    leader, follower, (first, second) = two_of_a_leader(bench)

    async def work() -> dict[int, tuple[ErrorCode, bool, int]]:
        async with Session(bench, leader, follower, TOPIC).open() as session:
            await session.fetch(asked(first, 0), asked(second, 0))
            await session.fetch()
            second.stand_by(second.leader_epoch)
            return await session.fetch(wait_ms=400)

    assert bench.run(work())[second.index][0] is ErrorCode.not_leader_or_follower


def test_a_session_that_ends_or_forgets_is_not_told_any_more(bench: ClusterBench) -> None:
    leader, follower, (first, second) = two_of_a_leader(bench)

    def told() -> list[int]:
        return [len(partition.watches._replicas) for partition in (first, second)]

    before = told()

    async def work() -> None:
        async with Session(bench, leader, follower, TOPIC).open() as session:
            await session.fetch(asked(first, 0), asked(second, 0))
            assert told() == [count + 1 for count in before]
            await session.fetch(forget=(second.index,))
            assert told() == [before[0] + 1, before[1]]
            session._epoch = 0  # an empty new session in place of this one
            await session.fetch()
            assert told() == before

    bench.run(work())

"""Consumers in groups on a simulated cluster in virtual time: assignments, commits, and removals."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from ottla.client import Admin, Consumer, ConsumerRecord, OffsetAndMetadata, Producer, TopicPartition
from ottla.client.errors import ClientError, CommitFailedError, FencedInstanceError
from ottla.machines.groups.placement import OFFSETS_TOPIC, partition_of
from ottla.sim.world import SimWorld
from tests.support.groups_bench import PROPERTIES
from tests.support.sim_cluster import ClusterBench

TOPIC, GROUP = "orders", "billing"
COUNT, PARTITIONS = 60, 6
WAYS: dict[str, dict[str, Any]] = {
    "eager": {"assignors": ["range"]},
    "cooperative": {"assignors": ["cooperative-sticky"]},
    "consumer": {"group_protocol": "consumer"},
}
every_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(1) as world:
        bench = ClusterBench(world, properties={**PROPERTIES, "min.insync.replicas": "2"})
        bench.run(bench.create(TOPIC, partitions=PARTITIONS))
        yield bench


def consumer_of(bench: ClusterBench, way: str = "eager", **settings: Any) -> Consumer:
    chosen = {"group_id": GROUP, "auto_offset_reset": "earliest", "session_timeout_ms": 10_000, **WAYS[way], **settings}
    return Consumer(bench.bootstrap, **chosen)


async def write(bench: ClusterBench, count: int = COUNT, first: int = 0) -> None:
    async with Producer(bench.bootstrap) as producer:
        for number in range(first, first + count):
            await producer.enqueue(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        await producer.flush()


async def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    while len(records) < count:
        records += await consumer.fetch_records(count - len(records))
    return records


@dataclass
class Member:
    """A consumer that reads forever. A record counts as processed when the next ones are requested."""

    bench: ClusterBench
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    found: list[bytes] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    assigned: list[TopicPartition] = field(default_factory=list)
    failure: BaseException | None = None

    def start(self) -> Member:
        host = self.bench.world.hosts.get(self.name) or self.bench.world.host(self.name)
        if not host.is_running:
            host.boot()
        host.spawn(self._run())
        return self

    async def _run(self) -> None:
        """Ends with its host, so it closes nothing."""
        consumer = consumer_of(self.bench, **self.settings)
        await consumer.start()
        consumer.subscribe(
            [TOPIC],
            on_assigned=lambda places: self.events.append(f"+{_indexes(places)}"),
            on_revoked=lambda places: self.events.append(f"-{_indexes(places)}"),
            on_lost=lambda places: self.events.append(f"lost {_indexes(places)}"),
        )
        try:
            while True:
                self.found += [record.value or b"" for record in await consumer.fetch_records(5, timeout_ms=100)]
                self.assigned = consumer.assignment
                await asyncio.sleep(0.01)
        except ClientError as failure:
            self.failure = failure

    def kill(self) -> None:
        self.bench.world.hosts[self.name].kill()
        self.assigned = []


def _indexes(places: list[TopicPartition]) -> str:
    return "".join(str(place.partition) for place in places)


def members_of(bench: ClusterBench, way: str, count: int, **settings: Any) -> list[Member]:
    return [Member(bench, f"member-{number}", {"way": way, **settings}).start() for number in range(count)]


def shared_out(members: list[Member]) -> bool:
    shares = [len(member.assigned) for member in members]
    owned = sorted(at for member in members for at in member.assigned)
    return owned == [(TOPIC, index) for index in range(PARTITIONS)] and max(shares) - min(shares) <= 1


def values(members: list[Member]) -> list[int]:
    return sorted(int(value) for member in members for value in member.found)


@every_way
def test_members_share_records_out_and_the_group_remembers(bench: ClusterBench, way: str) -> None:
    members = members_of(bench, way, 3)
    bench.until(lambda: shared_out(members))
    bench.run(write(bench))
    bench.until(lambda: len(values(members)) == COUNT)
    assert values(members) == list(range(COUNT)), "each of them once"

    async def go_on() -> list[ConsumerRecord]:
        async with consumer_of(bench, way, group_id="other") as other:
            other.subscribe([TOPIC])
            assert len(await read(other, COUNT)) == COUNT
        await write(bench, 6, first=COUNT)
        async with consumer_of(bench, way, group_id="other") as other:
            other.subscribe([TOPIC])
            return await read(other, 6)

    assert {record.value for record in bench.run(go_on())} == {b"%d" % number for number in range(60, 66)}


@every_way
def test_a_member_joins_and_one_is_killed(bench: ClusterBench, way: str) -> None:
    members = members_of(bench, way, 2)
    bench.until(lambda: shared_out(members))
    before = [len(member.events) for member in members]
    members += [Member(bench, "late", {"way": way}).start()]
    bench.run(write(bench))
    bench.until(lambda: shared_out(members))
    given_up = [event for member, seen in zip(members, before, strict=False) for event in member.events[seen:]]
    if way in ("cooperative", "consumer"):
        assert sorted(map(len, given_up)) == [2, 2], f"each gives up one partition, and keeps two: {given_up}"
    killed = members.pop(0)
    killed.kill()
    bench.until(lambda: shared_out(members))
    bench.run(write(bench, first=COUNT))
    bench.until(lambda: set(values([killed, *members])) == set(range(2 * COUNT)))
    assert not any("lost" in event for member in members for event in member.events)


@every_way
def test_the_coordinator_is_killed(bench: ClusterBench, way: str) -> None:
    members = members_of(bench, way, 2, auto_commit_interval_ms=200)
    bench.until(lambda: shared_out(members))
    events = [list(member.events) for member in members]
    bench.run(write(bench))
    bench.until(lambda: values(members) == list(range(COUNT)))
    coordinator = bench.leader(OFFSETS_TOPIC, partition_of(GROUP, 3))
    bench.kill(coordinator)
    bench.run(write(bench, first=COUNT))
    bench.until(lambda: set(values(members)) == set(range(2 * COUNT)))
    bench.boot(coordinator)
    bench.world.run_for(12)
    assert shared_out(members)
    assert [member.events for member in members] == events, "nobody who is alive is put out"

    async def committed() -> list[int]:
        async with consumer_of(bench, way) as consumer:
            found = await consumer.committed([(TOPIC, index) for index in range(PARTITIONS)])
            return [each.offset for each in found.values() if each is not None]

    assert bench.run(committed()) == [2 * COUNT // PARTITIONS] * PARTITIONS


def test_what_was_handed_out_is_committed_only_if_it_was_processed(bench: ClusterBench) -> None:
    async def committed(consumer: Consumer) -> OffsetAndMetadata | None:
        return (await consumer.committed([(TOPIC, 0)]))[TopicPartition(TOPIC, 0)]

    async def failing_program() -> None:
        async with consumer_of(bench, auto_commit_interval_ms=50) as consumer:
            consumer.subscribe([TOPIC])
            async for record in consumer:
                await asyncio.sleep(0.2)  # the background commit does not include this one either
                if record.offset == 3:
                    _ = 1 / 0

    async def program() -> None:
        await bench.write(TOPIC, [b"%d" % number for number in range(10)])
        with pytest.raises(ZeroDivisionError):
            await failing_program()
        async with consumer_of(bench, auto_commit_interval_ms=50) as consumer:
            assert await committed(consumer) == OffsetAndMetadata(3)
            consumer.subscribe([TOPIC])
            assert [record.offset for record in await read(consumer, 2)] == [3, 4]
            await asyncio.sleep(1)
            assert await committed(consumer) == OffsetAndMetadata(3)
            assert [record.offset for record in await read(consumer, 1)] == [5]
            await asyncio.sleep(1)
            assert await committed(consumer) == OffsetAndMetadata(5)
        async with consumer_of(bench, auto_commit=False) as consumer:
            assert await committed(consumer) == OffsetAndMetadata(6), "a program that ends well has processed all"
            consumer.subscribe([TOPIC])
            await read(consumer, 2)
        async with consumer_of(bench, auto_commit=False) as consumer:
            assert await committed(consumer) == OffsetAndMetadata(6)

    bench.run(program())


def test_commits_by_hand(bench: ClusterBench) -> None:
    async def program() -> None:
        await bench.write(TOPIC, [b"x"] * 10)
        async with consumer_of(bench, auto_commit=False) as consumer:
            consumer.subscribe([TOPIC])
            await read(consumer, 4)
            await consumer.commit({(TOPIC, 0): OffsetAndMetadata(2, "a note"), (TOPIC, 1): 0})
            found = await consumer.committed()
            assert found[TopicPartition(TOPIC, 0)] == OffsetAndMetadata(2, "a note")
            assert found[TopicPartition(TOPIC, 1)] == OffsetAndMetadata(0)
            assert found[TopicPartition(TOPIC, 2)] is None
            first, second = consumer.commit_nowait({(TOPIC, 0): 3}), consumer.commit_nowait()
            await asyncio.gather(first, second)
            assert (await consumer.committed())[TopicPartition(TOPIC, 0)] == OffsetAndMetadata(4)
            consumer.seek((TOPIC, 0), 7)
            await consumer.commit()
            assert (await consumer.committed())[TopicPartition(TOPIC, 0)] == OffsetAndMetadata(7)
            assert await consumer.position((TOPIC, 0)) == 7
        async with consumer_of(bench) as consumer:
            consumer.assign([(TOPIC, 0)])
            assert await consumer.position((TOPIC, 0)) == 7
            with pytest.raises(ClientError, match="use either assign or subscribe"):
                consumer.subscribe([TOPIC])
            assert [record.offset for record in await read(consumer, 3)] == [7, 8, 9]
        async with Consumer(bench.bootstrap) as alone:
            with pytest.raises(ClientError, match="has no group"):
                await alone.commit()

    bench.run(program())


def test_paused_partitions(bench: ClusterBench) -> None:
    async def program() -> None:
        await write(bench)
        async with consumer_of(bench) as consumer:
            consumer.subscribe([TOPIC])
            while not consumer.assignment:
                await consumer.fetch_records(1, timeout_ms=100)
            await consumer.seek_to_beginning()
            kept = (TOPIC, 2)
            consumer.pause(kept)
            assert consumer.paused == [kept]
            records = await read(consumer, 50)
            assert {record.partition for record in records} == {0, 1, 3, 4, 5}
            assert await consumer.fetch_records(timeout_ms=1000) == []
            consumer.resume(kept)
            assert {record.partition for record in await read(consumer, 10)} == {2}

    bench.run(program())


@every_way
def test_a_user_that_is_away_for_too_long_is_put_out_and_comes_back(bench: ClusterBench, way: str) -> None:
    lost: list[TopicPartition] = []

    async def program() -> None:
        await write(bench)
        consumer = consumer_of(bench, way, max_poll_interval_ms=5000, auto_commit=False)
        async with consumer, consumer_of(bench, way) as other:
            consumer.subscribe([TOPIC], on_lost=lost.extend)
            await read(consumer, 10)
            other.subscribe([TOPIC])
            found = await read(other, COUNT)  # no other member commits; it waits until the first one is removed
            assert len({record.value for record in found}) == COUNT
            assert not lost
            with pytest.raises(CommitFailedError, match="the group has rebalanced without this consumer"):
                await consumer.commit()
            while not consumer.in_group or not other.in_group or len(consumer.assignment) != PARTITIONS // 2:
                await asyncio.gather(consumer.fetch_records(timeout_ms=50), other.fetch_records(timeout_ms=50))
            assert len(lost) == PARTITIONS
            await consumer.commit()

    bench.run(program(), timeout_s=300)


def test_a_user_that_waits_is_not_away(bench: ClusterBench) -> None:
    async def program() -> list[ConsumerRecord]:
        async with consumer_of(bench, max_poll_interval_ms=2000) as consumer:
            consumer.subscribe([TOPIC], on_lost=lambda places: pytest.fail(f"lost {places}"))
            assert await consumer.fetch_records(timeout_ms=20_000) == []
            await bench.write(TOPIC, [b"x"])
            return await consumer.fetch_records()

    assert len(bench.run(program())) == 1


@every_way
def test_a_static_member_that_comes_back_has_its_partitions(bench: ClusterBench, way: str) -> None:
    first = Member(bench, "one", {"way": way, "group_instance_id": "one"}).start()
    second = Member(bench, "two", {"way": way, "group_instance_id": "two"}).start()
    bench.until(lambda: shared_out([first, second]))
    before, had = len(second.events), first.assigned

    async def stop_and_start() -> None:
        async with consumer_of(bench, way, group_instance_id="one") as again:
            again.subscribe([TOPIC])
            while not again.in_group or not again.assignment:
                await again.fetch_records(timeout_ms=100)
            assert again.assignment == had

    if way == "consumer":  # it announces its return; the classic member is silent
        bench.world.hosts["one"].kill()
        bench.world.run_for(11)
        bench.until(lambda: len(second.assigned) == PARTITIONS)
        return
    first.kill()
    bench.run(stop_and_start())
    assert len(second.events) == before, "the other one has not noticed anything"


def test_of_two_members_with_one_instance_id_the_later_one_wins(bench: ClusterBench) -> None:
    first = Member(bench, "one", {"group_instance_id": "same"}).start()
    bench.until(lambda: len(first.assigned) == PARTITIONS)
    second = Member(bench, "two", {"group_instance_id": "same"}).start()
    bench.until(lambda: len(second.assigned) == PARTITIONS and first.failure is not None)
    assert isinstance(first.failure, FencedInstanceError)
    assert "another consumer has taken over" in str(first.failure)


@every_way
def test_callbacks_come_while_the_partitions_are_there(bench: ClusterBench, way: str) -> None:
    told: list[str] = []

    async def program() -> None:
        await write(bench)
        async with consumer_of(bench, way, auto_commit=False) as consumer:

            async def on_assigned(places: list[TopicPartition]) -> None:
                told.append(f"+{len(places)}")
                consumer.seek(places[0], 5)
                assert await consumer.position(places[0]) == 5
                with pytest.raises(ClientError, match="callback"):
                    await consumer.fetch_records()

            async def on_revoked(places: list[TopicPartition]) -> None:
                await consumer.commit()
                told.append(f"-{len(places)}")

            consumer.subscribe([TOPIC], on_assigned=on_assigned, on_revoked=on_revoked)
            records = await read(consumer, COUNT - 5)
            assert [record.offset for record in records if record.partition == 0] == [5, 6, 7, 8, 9]
        async with consumer_of(bench) as consumer:
            found = await consumer.committed([(TOPIC, index) for index in range(PARTITIONS)])
            assert [each and each.offset for each in found.values()] == [10] * PARTITIONS

    bench.run(program())
    assert told == ["+6", "-6"]


def test_what_a_callback_raises_is_raised_by_the_fetch(bench: ClusterBench) -> None:
    async def program() -> None:
        async with consumer_of(bench) as consumer:

            def fail(places: list[TopicPartition]) -> None:
                raise KeyError("nothing")

            consumer.subscribe([TOPIC], on_assigned=fail)
            with pytest.raises(KeyError, match="nothing"):
                await consumer.fetch_records(timeout_ms=10_000)
            assert len(consumer.assignment) == PARTITIONS
            assert await consumer.fetch_records(timeout_ms=100) == []

    bench.run(program())


@every_way
def test_new_partitions_and_topics_are_noticed(bench: ClusterBench, way: str) -> None:
    async def program() -> None:
        settings = {"metadata_max_age_ms": 1000, "group_id": "by name"}
        async with (
            consumer_of(bench, way, **settings) as by_name,
            consumer_of(bench, way, metadata_max_age_ms=1000) as by_pattern,
            Admin(bench.bootstrap) as admin,
        ):
            by_name.subscribe([TOPIC])
            by_pattern.subscribe(re.compile("ord.*"))
            await admin.create_topic("ordinary", partitions=1)
            await admin.create_topic("disorder", partitions=1)
            await admin.create_partitions(TOPIC, PARTITIONS + 1)
            wanted = [TopicPartition(TOPIC, index) for index in range(PARTITIONS + 1)]
            while by_name.assignment != wanted or by_pattern.assignment != [*wanted, ("ordinary", 0)]:
                await asyncio.gather(by_name.fetch_records(timeout_ms=100), by_pattern.fetch_records(timeout_ms=100))

    bench.run(program())


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"assignors": ["best"]}, "range, roundrobin, cooperative-sticky, not 'best'"),
        ({"group_protocol": "modern"}, "classic, consumer, not 'modern'"),
        ({"heartbeat_interval_ms": 10_000}, "less than session_timeout_ms"),
        ({"group_id": ""}, "group_id is empty"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Consumer("127.0.0.1:1", **{"group_id": GROUP, "session_timeout_ms": 10_000, **settings})
    with pytest.raises(ValueError, match="need a group"):
        Consumer("127.0.0.1:1").subscribe(re.compile("a"))


def test_members_that_do_not_fit_together_say_so(bench: ClusterBench) -> None:
    first = Member(bench, "one", {"way": "eager"}).start()
    bench.until(lambda: len(first.assigned) == PARTITIONS)
    second = Member(bench, "two", {"way": "cooperative"}).start()
    bench.until(lambda: second.failure is not None)
    assert "no assignor of this consumer (INCONSISTENT_GROUP_PROTOCOL)" in str(second.failure)
    assert first.failure is None


def test_a_callback_that_commits_does_not_fail_when_the_partitions_are_lost(bench: ClusterBench) -> None:
    told: list[int] = []

    async def program() -> None:
        await write(bench)
        async with consumer_of(bench, max_poll_interval_ms=2000, auto_commit=False) as consumer:

            async def on_revoked(places: list[TopicPartition]) -> None:
                told.append(len(places))
                await consumer.commit()

            consumer.subscribe([TOPIC], on_revoked=on_revoked)
            await read(consumer, 10)
            await asyncio.sleep(5)
            assert len(await read(consumer, COUNT)) == COUNT, "nothing was committed: all of it once more"

    bench.run(program())
    assert told == [PARTITIONS, PARTITIONS]


def test_a_consumer_ends_though_its_cluster_is_gone(bench: ClusterBench) -> None:
    async def program() -> float:
        await write(bench)
        loop = asyncio.get_running_loop()
        async with consumer_of(bench) as consumer:
            consumer.subscribe([TOPIC])
            await read(consumer, 10)
            for number in bench.ids:
                bench.kill(number)
            began_s = loop.time()
        return loop.time() - began_s

    assert bench.run(program()) < 20


@every_way
def test_partitions_change_hands_where_the_last_owner_stopped(bench: ClusterBench, way: str) -> None:
    """By a commit before they are revoked: the periodic commit is far in the future."""
    members = members_of(bench, way, 1, auto_commit_interval_ms=10_000_000)
    bench.run(write(bench))
    bench.until(lambda: len(values(members)) == COUNT)
    members += [Member(bench, "late", {"way": way}).start()]
    bench.until(lambda: shared_out(members))
    bench.world.run_for(5)
    assert values(members) == list(range(COUNT)), "each of them once"


@every_way
def test_a_consumer_that_is_closed_leaves_at_once(bench: ClusterBench, way: str) -> None:
    """Its partitions do not wait for its session to expire."""
    stays = Member(bench, "stays", {"way": way, "heartbeat_interval_ms": 500}).start()

    async def come_and_go() -> None:
        async with consumer_of(bench, way) as consumer:
            consumer.subscribe([TOPIC])
            while len(consumer.assignment) < PARTITIONS // 2:
                await consumer.fetch_records(timeout_ms=100)
        async with Admin(bench.bootstrap) as admin:
            assert len((await admin.describe_group(GROUP)).members) == 1

    bench.run(come_and_go())
    bench.until(lambda: len(stays.assigned) == PARTITIONS)


@every_way
def test_members_that_commit_nothing_find_the_new_coordinator_too(bench: ClusterBench, way: str) -> None:
    members = members_of(bench, way, 2, auto_commit=False)
    bench.until(lambda: shared_out(members))
    events = [list(member.events) for member in members]
    bench.kill(bench.leader(OFFSETS_TOPIC, partition_of(GROUP, 3)))
    bench.world.run_for(25)  # longer than a session
    assert [member.events for member in members] == events
    members.append(Member(bench, "late", {"way": way, "auto_commit": False}).start())
    bench.until(lambda: shared_out(members))

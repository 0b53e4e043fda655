"""The transaction coordinator on three brokers: after a failover, the new one completes decided transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.broker.transactions.settings import STATE_TOPIC
from ottla.client.admin.admin import Admin
from ottla.machines.groups.placement import partition_of
from ottla.protocol.model.errors import ErrorCode
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench
from tests.support.transactional_session import PAUSE_S, Reached, Session

NONE = ErrorCode.none
STATE_PARTITIONS = 5
TOPIC, OTHER = "orders", "payments"


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    properties = {
        "transaction.state.log.num.partitions": str(STATE_PARTITIONS),
        "offsets.topic.num.partitions": "3",
    }
    with SimWorld(1) as world:
        bench = ClusterBench(world, properties=properties)
        for topic in (TOPIC, OTHER):
            bench.run(bench.create(topic))
            bench.until_in_sync(topic)
        yield bench


@pytest.fixture(params=[0, 2])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


async def committed(bench: ClusterBench, topic: str, count: int) -> list[bytes]:
    """Returns the committed records once no transaction is open and there are that many."""
    while True:
        leader = bench.leader(topic)
        if leader != -1:
            partition = bench.partition(leader, topic)
            found: list[bytes] = await Reached(bench, leader, topic).run(lambda peer: peer.committed())
            if len(found) >= count and partition.last_stable_offset == partition.log.end_offset:
                return found
        await asyncio.sleep(PAUSE_S)


def coordinator_of(bench: ClusterBench, session: Session) -> int:
    """Returns the leader of its partition; waits until there is one."""
    index = partition_of(session.name, STATE_PARTITIONS)
    bench.until(lambda: bench.leader(STATE_TOPIC, index) != -1)
    return bench.leader(STATE_TOPIC, index)


def lose_markers(bench: ClusterBench, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(bench.broker(number).transactions._markers, "send", never)


def test_commits_and_aborts(bench: ClusterBench, version: int) -> None:
    """On partitions with different leaders, some of them not the coordinator."""
    session = Session(bench, "writer", version=version)

    async def work() -> None:
        assert await session.init() is NONE
        for number in range(6):
            for topic in (TOPIC, OTHER):
                assert await session.produce(topic, b"%d" % number) is NONE
            assert await session.end(commit=number % 2 == 0) is NONE

    bench.run(work())
    for topic in (TOPIC, OTHER):
        assert bench.run(committed(bench, topic, 3)) == [b"0", b"2", b"4"]


@pytest.mark.parametrize("commit", [True, False])
def test_a_coordinator_that_goes_after_the_decision(
    bench: ClusterBench, version: int, commit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its markers were not sent: the new coordinator sends them."""
    session = Session(bench, "writer", version=version)

    async def work() -> None:
        assert await session.init() is NONE
        assert await session.produce(TOPIC, b"1") is NONE
        assert await session.produce(OTHER, b"1") is NONE
        lose_markers(bench, await session.coordinator(), monkeypatch)
        assert await session.end(commit=commit) is NONE

    bench.run(work())
    old = coordinator_of(bench, session)
    assert all(bench.partition(bench.leader(topic), topic).last_stable_offset == 0 for topic in (TOPIC, OTHER))
    bench.kill(old)

    async def after() -> None:
        assert await session.produce(TOPIC, b"2") is NONE
        assert await session.end(commit=True) is NONE

    bench.run(after())
    expected = [b"1", b"2"] if commit else [b"2"]
    assert bench.run(committed(bench, TOPIC, len(expected))) == expected
    assert bench.run(committed(bench, OTHER, len(expected) - 1)) == expected[:-1]


def test_a_coordinator_that_goes_before_the_decision(bench: ClusterBench, version: int) -> None:
    session = Session(bench, "writer", version=version)

    async def before() -> None:
        assert await session.init() is NONE
        assert await session.produce(TOPIC, b"1") is NONE

    async def after() -> None:
        assert await session.produce(OTHER, b"2") is NONE
        assert await session.end(commit=True) is NONE

    bench.run(before())
    bench.kill(coordinator_of(bench, session))
    bench.run(after())
    assert bench.run(committed(bench, TOPIC, 1)) == [b"1"]
    assert bench.run(committed(bench, OTHER, 1)) == [b"2"]


def test_a_leader_that_cannot_be_reached_gets_its_marker_later(bench: ClusterBench, version: int) -> None:
    """The transaction is complete only then: all markers precede its end (safety: last-stable-offset)."""
    leader = bench.leader(TOPIC)
    name = next(name for name in map(str, range(100)) if _is_led_by_others(bench, name, leader))
    session = Session(bench, name, version=version)

    async def before() -> None:
        assert await session.init() is NONE
        assert await session.produce(TOPIC, b"1") is NONE

    bench.run(before())
    coordinator = coordinator_of(bench, session)
    fault = bench.world.network.cut([bench.name(coordinator)], [bench.name(leader)])

    async def begin_to_end() -> asyncio.Task[ErrorCode]:
        ending = asyncio.ensure_future(session.end(commit=True))
        await asyncio.sleep(60)  # the leader is no longer in sync as a follower of the coordinator
        return ending

    ending = bench.run(begin_to_end())
    assert dict(bench.broker(coordinator).transactions.state_counts()) == {"PrepareCommit": 1}
    assert bench.partition(leader, TOPIC).last_stable_offset == 0
    fault.heal()
    assert bench.run(asyncio.wait_for(ending, 60)) is NONE
    assert bench.run(committed(bench, TOPIC, 1)) == [b"1"]
    bench.until(lambda: dict(bench.broker(coordinator).transactions.state_counts()) == {"CompleteCommit": 1})


def test_no_marker_before_the_decision_is_committed(bench: ClusterBench, version: int) -> None:
    """Not even on the coordinator's own broker: a failover could still undo the decision (safety:
    last-stable-offset)."""
    leader = bench.leader(TOPIC)
    name = next(name for name in map(str, range(100)) if not _is_led_by_others(bench, name, leader))
    session = Session(bench, name, version=version)

    async def before() -> None:
        assert await session.init() is NONE
        assert await session.produce(TOPIC, b"1") is NONE

    bench.run(before())
    others = [bench.name(number) for number in bench.ids if number != leader]
    fault = bench.world.network.cut([bench.name(leader)], others)

    async def begin_to_end() -> asyncio.Task[ErrorCode]:
        ending = asyncio.ensure_future(session.end(commit=True))
        await asyncio.sleep(2)
        return ending

    ending = bench.run(begin_to_end())
    assert dict(bench.broker(leader).transactions.state_counts()) == {"PrepareCommit": 1}
    assert bench.partition(leader, TOPIC).log.end_offset == 1
    fault.heal()
    assert bench.run(asyncio.wait_for(ending, 100)) is NONE
    assert bench.run(committed(bench, TOPIC, 1)) == [b"1"]


def _is_led_by_others(bench: ClusterBench, name: str, leader: int) -> bool:
    return bench.run(Session(bench, name).coordinator()) != leader


def test_a_transaction_of_a_producer_that_is_gone_times_out(bench: ClusterBench, version: int) -> None:
    """Also if its coordinator fails meanwhile: the next one knows when the transaction began."""
    session = Session(bench, "gone", version=version, timeout_ms=20_000)

    async def before() -> None:
        assert await session.init() is NONE
        assert await session.produce(TOPIC, b"gone") is NONE

    bench.run(before())
    bench.kill(coordinator_of(bench, session))
    other = Session(bench, "other", version=version)

    async def after() -> None:
        assert await other.init() is NONE
        assert await other.produce(TOPIC, b"here") is NONE
        assert await other.end(commit=True) is NONE

    bench.run(after())
    assert bench.run(committed(bench, TOPIC, 1)) == [b"here"]
    assert bench.run(session.end(commit=True)) in (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch)


def test_whoever_comes_later_fences(bench: ClusterBench, version: int) -> None:
    old, new = Session(bench, "one", version=version), Session(bench, "one", version=version)

    async def work() -> None:
        assert await old.init() is NONE
        assert await old.produce(TOPIC, b"old") is NONE
        assert await new.init() is NONE
        assert await old.produce(TOPIC, b"late") is ErrorCode.invalid_producer_epoch
        assert await old.produce(OTHER, b"late") in (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced)
        assert await old.end(commit=True) is ErrorCode.producer_fenced
        assert await new.produce(TOPIC, b"new") is NONE
        assert await new.end(commit=True) is NONE

    bench.run(work())
    assert bench.run(committed(bench, TOPIC, 1)) == [b"new"]
    assert bench.run(committed(bench, OTHER, 0)) == []


def test_a_batch_that_is_part_of_no_transaction_is_refused(bench: ClusterBench) -> None:
    """A late batch of a client that adds its partitions explicitly: its coordinator does not know of it (KIP-890)."""
    session = Session(bench, "late", version=0)

    async def work() -> None:
        assert await session.init() is NONE
        session.added.add((OTHER, 0))  # or so it believes
        assert await session.produce(OTHER, b"late") is ErrorCode.transaction_abortable

    bench.run(work())
    assert bench.run(committed(bench, OTHER, 0)) == []


def test_offsets_count_when_the_transaction_does(bench: ClusterBench, version: int) -> None:
    session = Session(bench, "copier", version=version)

    async def work() -> None:
        assert await session.init() is NONE
        assert await session.commit_offset("g", TOPIC, 5) is NONE
        assert await session.committed_offset("g", TOPIC) is ErrorCode.unstable_offset_commit
        assert await session.committed_offset("g", TOPIC, stable=False) == -1
        assert await session.end(commit=True) is NONE
        assert await session.settled_offset("g", TOPIC) == 5
        assert await session.commit_offset("g", TOPIC, 9) is NONE
        assert await session.end(commit=False) is NONE
        assert await session.settled_offset("g", TOPIC) == 5

    bench.run(work())
    bench.kill(bench.leader("__consumer_offsets", partition_of("g", 3)))
    assert bench.run(session.committed_offset("g", TOPIC)) == 5


def test_a_group_coordinator_that_goes_in_the_middle_of_a_transaction(bench: ClusterBench, version: int) -> None:
    session = Session(bench, "copier", version=version)

    async def before() -> None:
        assert await session.init() is NONE
        assert await session.produce(TOPIC, b"1") is NONE
        assert await session.commit_offset("g", TOPIC, 5) is NONE

    async def after() -> int | ErrorCode:
        assert await session.committed_offset("g", TOPIC) is ErrorCode.unstable_offset_commit
        assert await session.end(commit=True) is NONE
        return await session.settled_offset("g", TOPIC)

    bench.run(before())
    bench.kill(bench.leader("__consumer_offsets", partition_of("g", 3)))
    assert bench.run(after()) == 5
    assert bench.run(committed(bench, TOPIC, 1)) == [b"1"]


def test_the_topic_of_a_transaction_is_deleted(bench: ClusterBench, version: int) -> None:
    """No marker is needed there, and the rest of the transaction ends as decided."""
    session = Session(bench, "writer", version=version)

    async def work() -> None:
        assert await session.init() is NONE
        assert await session.produce(TOPIC, b"1") is NONE
        assert await session.produce(OTHER, b"1") is NONE
        async with Admin(bench.bootstrap) as admin:
            await admin.delete_topic(OTHER)
        assert await session.end(commit=True) is NONE
        assert await session.init() is NONE

    bench.run(work())
    assert bench.run(committed(bench, TOPIC, 1)) == [b"1"]

"""Brokers whose leases expire while they run: they resume their roles with all their data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from ottla.bench.frames import prepare_batch, produce_frame
from ottla.broker.api.api import ConnectionState
from ottla.broker.api.dispatch import dispatch_run
from ottla.broker.cluster.membership import Membership, MembershipEvents
from ottla.broker.partition.partition import Partition
from ottla.broker.wal_service.logs import Logs
from ottla.coordination.held_lease import HeldLease
from ottla.machines.controller.image_changes import ImageChanges
from ottla.net.apis import ClientApi
from ottla.protocol.model.acl import Operation
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.wal_calls import LogName
from ottla.sim.world import SimWorld, UnhandledError
from tests.support.sim_cluster import ClusterBench

VALUES = [b"1", b"2", b"3"]
LIST_OFFSETS = ClientApi(2, "ListOffsets", (7, 7))


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(1) as world:
        yield ClusterBench(world)


def membership(bench: ClusterBench, number: int) -> Membership:
    cluster = bench.cluster(number)
    return cluster.membership


def epoch(bench: ClusterBench, number: int) -> int | None:
    return membership(bench, number).epoch


def lose_lease(bench: ClusterBench, number: int) -> None:
    lease = membership(bench, number).lease
    assert lease is not None
    bench.store.lose_lease(lease.id)


@pytest.mark.parametrize("factor", [1, 3])
def test_memory_is_kept_when_a_lease_is_lost(bench: ClusterBench, factor: int) -> None:
    bench.run(bench.create("orders", factor=factor, ottla_durability="memory"))
    bench.until_in_sync("orders", count=factor)
    bench.run(bench.write("orders", VALUES))
    leader = bench.leader("orders")
    before = epoch(bench, leader)
    lose_lease(bench, leader)
    bench.until(lambda: epoch(bench, leader) is None or bench.leader("orders") != leader)
    bench.until(lambda: epoch(bench, leader) is not None)
    bench.until_in_sync("orders", count=factor)
    assert epoch(bench, leader) == before
    assert bench.run(bench.read("orders", 3)) == VALUES
    assert bench.partition(leader, "orders").log.end_offset == 3


def test_memory_is_kept_when_the_coordination_store_was_away(bench: ClusterBench) -> None:
    """All leases expire for their owners; the records of a memory topic are present when the store is back."""
    bench.run(bench.create("orders", ottla_durability="memory"))
    bench.until_in_sync("orders")
    bench.run(bench.write("orders", VALUES))
    before = [epoch(bench, number) for number in bench.ids]
    bench.store.stop()
    bench.until(lambda: all(epoch(bench, number) is None for number in bench.ids))
    bench.world.run_for(10)
    bench.store.start()
    bench.until(lambda: all(epoch(bench, number) is not None for number in bench.ids))
    bench.until_in_sync("orders")
    assert [epoch(bench, number) for number in bench.ids] == before
    assert bench.run(bench.read("orders", 3)) == VALUES
    bench.run(bench.write("orders", [b"4"]))
    assert bench.run(bench.read("orders", 4)) == [*VALUES, b"4"]


def test_a_broker_with_a_failed_log_comes_back_as_the_next_incarnation(bench: ClusterBench) -> None:
    """Its failed logs are part of its registration."""
    bench.run(bench.create("orders", partitions=3))
    bench.until_in_sync("orders")
    before = epoch(bench, 1)
    assert before is not None
    bench.partition(1, "orders").log.failed = OSError("gone")
    lose_lease(bench, 1)
    bench.until(lambda: (epoch(bench, 1) or 0) > before)
    bench.until(lambda: membership(bench, 1).image.has_failures(1))


def test_a_broker_that_fails_to_follow_its_cluster_leads_no_more_and_says_so() -> None:
    """A bug must not leave a leader that is unaware of elections."""
    with SimWorld(1) as world:
        bench = ClusterBench(world)
        bench.run(bench.create("orders"))
        bench.until_in_sync("orders")
        leader = bench.leader("orders")
        membership(bench, leader).events.append(Faulty())
        with pytest.raises(UnhandledError, match=r"no longer follows the cluster state.*a bug"):
            bench.run(bench.create("others"))
        assert bench.partition(leader, "orders").leading is None
        bench.until(lambda: bench.leader("orders") not in (-1, leader))


def test_a_timer_that_is_early_is_no_reason_to_lead_for_longer(
    bench: ClusterBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in four of uvloop's timers fired early. The lease must end even if a renewal hangs."""
    member = membership(bench, 1)
    assert member.lease is not None

    async def hang() -> bool:
        await asyncio.get_running_loop().create_future()
        return True

    monkeypatch.setattr(member.lease, "renew", hang)
    left_ms = member.lease.deadline_ms - bench.broker(1).clock.monotonic_ms()
    bench.world.run_for((left_ms - 1) / 1000)
    assert member.is_alive
    member._disarm()
    member._on_deadline()
    assert epoch(bench, 1) is not None
    bench.world.run_for(0.01)
    assert epoch(bench, 1) is None


def ask_for_the_end(bench: ClusterBench, leader: int, partition: Partition) -> ErrorCode:
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "orders", "partitions": [asked]}]}
    answer = bench.run(bench.ask(leader, LIST_OFFSETS, body))
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def write_a_run(bench: ClusterBench, leader: int, partition: Partition) -> ErrorCode:
    frame = memoryview(bytearray(produce_frame("orders", prepare_batch(100, 100, 0))[4:]))

    async def write() -> int:
        return dispatch_run(bench.broker(leader), ConnectionState("test"), [frame], 0, 32)[1]

    return ErrorCode.none if bench.run(write()) else ErrorCode.not_leader_or_follower


def name_the_log(bench: ClusterBench, leader: int, partition: Partition) -> ErrorCode:
    led = Logs(bench.broker(leader)).led(LogName("orders", 0), Operation.READ)
    return ErrorCode.none if led is partition else ErrorCode.not_leader_or_follower


@pytest.mark.parametrize("request_of", [ask_for_the_end, write_a_run, name_the_log])
def test_a_request_after_the_deadline_finds_no_leader(
    bench: ClusterBench, request_of: Callable[[ClusterBench, int, Partition], ErrorCode]
) -> None:
    """A paused process reads its sockets before its timers: a leader that may have been replaced must not serve
    requests that arrived meanwhile."""
    bench.run(bench.create("orders"))
    bench.until_in_sync("orders")
    bench.run(bench.write("orders", VALUES))
    leader = bench.leader("orders")
    partition, lease = bench.partition(leader, "orders"), membership(bench, leader).lease
    assert isinstance(lease, HeldLease)
    assert request_of(bench, leader, partition) is ErrorCode.none
    lease.deadline_ms = bench.broker(leader).clock.monotonic_ms()
    assert request_of(bench, leader, partition) is ErrorCode.not_leader_or_follower
    assert partition.leading is None
    bench.until(lambda: epoch(bench, leader) is not None)


class Faulty(MembershipEvents):
    def on_touched(self, touched: ImageChanges) -> None:
        raise ValueError("a bug")

"""Brokers whose leases end while they live: they go on as what they were, with all they have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.broker.cluster.membership import MembershipEvents
from ottla.machines.controller.touched import Touched
from ottla.sim.world import SimWorld, UnhandledError
from tests.unit.sim_cluster import ClusterBench

VALUES = [b"1", b"2", b"3"]


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(1) as world:
        yield ClusterBench(world)


def epoch(bench: ClusterBench, number: int) -> int | None:
    cluster = bench.broker(number).cluster
    assert cluster is not None
    return cluster.membership.epoch


def lose_lease(bench: ClusterBench, number: int) -> None:
    cluster = bench.broker(number).cluster
    assert cluster is not None
    assert cluster.membership.lease is not None
    bench.store.lose_lease(cluster.membership.lease.id)


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
    """All leases end for their owners; the records of a topic in memory are there when it is back."""
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
    """What it says of its failed logs is a part of its registration."""
    bench.run(bench.create("orders", partitions=3))
    bench.until_in_sync("orders")
    before = epoch(bench, 1)
    assert before is not None
    bench.partition(1, "orders").log.failed = OSError("gone")
    lose_lease(bench, 1)
    bench.until(lambda: (epoch(bench, 1) or 0) > before)
    cluster = bench.broker(1).cluster
    assert cluster is not None
    membership = cluster.membership
    bench.until(lambda: membership.image.has_failures(1))


def test_a_broker_that_fails_to_follow_its_cluster_leads_no_more_and_says_so() -> None:
    """A bug somewhere in it must not leave a leader that hears nothing of the elections of others."""
    with SimWorld(1) as world:
        bench = ClusterBench(world)
        bench.run(bench.create("orders"))
        bench.until_in_sync("orders")
        leader = bench.leader("orders")
        cluster = bench.broker(leader).cluster
        assert cluster is not None
        cluster.membership.events.append(Faulty())
        with pytest.raises(UnhandledError, match=r"follows its cluster no more.*a bug"):
            bench.run(bench.create("others"))
        assert bench.partition(leader, "orders").leading is None
        bench.until(lambda: bench.leader("orders") not in (-1, leader))


class Faulty(MembershipEvents):
    def on_touched(self, touched: Touched) -> None:
        raise ValueError("a bug")

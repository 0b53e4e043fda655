"""Leadership returns to the preferred replicas."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench

PARTITIONS = 6


@pytest.fixture
def world() -> Iterator[SimWorld]:
    with SimWorld(1) as world:
        yield world


def with_a_restarted_broker(world: SimWorld, **properties: str) -> tuple[ClusterBench, dict[int, int]]:
    """Returns a cluster in which broker 2 was restarted, and the leaders before that."""
    named = {name.replace("_", "."): value for name, value in properties.items()}
    bench = ClusterBench(world, properties=named)
    bench.run(bench.create("orders", partitions=PARTITIONS))
    for index in range(PARTITIONS):
        bench.until_in_sync("orders", index)
    before = leaders(bench)
    assert set(before.values()) == {1, 2, 3}
    bench.kill(2)
    bench.until(lambda: 2 not in leaders(bench).values() and -1 not in leaders(bench).values())
    bench.boot(2)
    for index in range(PARTITIONS):
        bench.until_in_sync("orders", index)
    return bench, before


def leaders(bench: ClusterBench) -> dict[int, int]:
    return {index: bench.leader("orders", index) for index in range(PARTITIONS)}


def test_a_restarted_broker_gets_its_leaderships_back(world: SimWorld) -> None:
    bench, before = with_a_restarted_broker(world, leader_imbalance_check_interval_seconds="30")
    assert 2 not in leaders(bench).values()
    bench.until(lambda: leaders(bench) == before, timeout_s=40)
    bench.run(bench.write("orders", [b"1"], next(index for index, leader in before.items() if leader == 2)))


def test_leaders_stay_where_they_are_if_nobody_wants_them_moved(world: SimWorld) -> None:
    bench, before = with_a_restarted_broker(
        world, leader_imbalance_check_interval_seconds="5", auto_leader_rebalance_enable="false"
    )
    world.run_for(30)
    assert leaders(bench) != before
    assert 2 not in leaders(bench).values()


def test_a_small_imbalance_is_left_alone(world: SimWorld) -> None:
    bench, _ = with_a_restarted_broker(
        world, leader_imbalance_check_interval_seconds="5", leader_imbalance_per_broker_percentage="100"
    )
    world.run_for(30)
    assert 2 not in leaders(bench).values()

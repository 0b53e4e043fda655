"""Consumers in groups whose coordinator hangs: it keeps its connections and does not reply."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.machines.groups.placement import OFFSETS_TOPIC, partition_of
from ottla.sim.world import SimWorld
from tests.support.groups_bench import PROPERTIES
from tests.support.sim_cluster import ClusterBench
from tests.unit.client.test_client_groups import GROUP, PARTITIONS, TOPIC, Member, members_of, shared_out


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(1) as world:
        bench = ClusterBench(world, properties={**PROPERTIES, "min.insync.replicas": "2"})
        bench.run(bench.create(TOPIC, partitions=PARTITIONS))
        yield bench


@pytest.mark.parametrize("way", ["eager", "cooperative"])
def test_a_coordinator_that_stands_still_is_given_up_within_the_session(bench: ClusterBench, way: str) -> None:
    """Another broker has taken its place."""
    members = members_of(bench, way, 2, auto_commit=False)
    bench.until(lambda: shared_out(members))
    events = [list(member.events) for member in members]
    coordinator = bench.leader(OFFSETS_TOPIC, partition_of(GROUP, 3))
    bench.host(coordinator).pause()
    bench.world.run_for(25)  # longer than a session
    bench.host(coordinator).resume()
    bench.world.run_for(5)
    assert [member.events for member in members] == events, "nobody who is alive is put out"
    members.append(Member(bench, "late", {"way": way, "auto_commit": False}).start())
    bench.until(lambda: shared_out(members))

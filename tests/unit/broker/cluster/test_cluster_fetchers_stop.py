"""A broker that ends as in a crash fetches nothing more, whoever leads meanwhile."""

from __future__ import annotations

from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench

TOPIC = "orders"


def test_nothing_is_fetched_from_a_leader_that_comes_after_the_stop() -> None:
    with SimWorld(1) as world:
        bench = ClusterBench(world)
        bench.run(bench.create(TOPIC, min_insync_replicas="1"))
        bench.until_in_sync(TOPIC)
        bench.run(bench.write(TOPIC, [b"before"]))
        first = bench.leader(TOPIC)
        # The next replica in order is elected.
        other, stopped = (number for number in bench.partition(first, TOPIC).placement.replicas if number != first)
        stopping = bench.host(stopped).spawn(bench.cluster(stopped).abandon())
        bench.until(stopping.done)
        bench.kill(first)
        bench.until(lambda: bench.leader(TOPIC) == other)
        bench.run(bench.write(TOPIC, [b"after"]))
        assert bench.partition(other, TOPIC).log.end_offset == 2
        assert bench.partition(stopped, TOPIC).log.end_offset == 1

"""Test support for programs that use Ottla: real brokers inside the test process, on real ports.

    with Cluster() as cluster:
        cluster.create_topic("orders", partitions=3)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})

    with Cluster(brokers=3) as cluster:
        cluster.create_topic("orders")
        leader = cluster.leader_of("orders")
        cluster.kill(leader)       # another broker takes over within moments
        cluster.restart(leader)
        cluster.wait_until_in_sync()

        cluster.wait_for_assignment("billing", members=2)    # of a consumer group
        cluster.wait_for_lag_zero("billing")                 # or `await cluster.async_wait_for_lag_zero("billing")`

With pytest, use the fixture `ottla` (a fresh broker for each test), `ottla_cluster` (three brokers) or
`ottla_cluster_factory`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.testing.cluster import Cluster, TopicRefusedError

__all__ = ["Cluster", "TopicRefusedError"]


def __getattr__(name: str) -> Any:
    """Imports the broker on first use, because every run of pytest loads the plugin, even if no test uses it."""
    if name in __all__:
        from ottla.testing import cluster

        return getattr(cluster, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

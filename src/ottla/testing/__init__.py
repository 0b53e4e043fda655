"""For tests of programs that use Ottla: a real broker inside the test process, on a real port.

    with Cluster() as cluster:
        cluster.create_topic("orders", partitions=3)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})

With pytest, ask for the fixture `ottla` (a fresh cluster for each test) or `ottla_cluster_factory`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.testing.cluster import Cluster, TopicRefusedError

__all__ = ["Cluster", "TopicRefusedError"]


def __getattr__(name: str) -> Any:
    """The broker is imported when it is used: the plugin is loaded by every run of pytest, also by those without."""
    if name in __all__:
        from ottla.testing import cluster

        return getattr(cluster, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Fixtures for other people's tests: a real broker on a real port.

def test_orders(ottla):
    ottla.create_topic("orders")
    producer = Producer({"bootstrap.servers": ottla.bootstrap_servers})
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ottla.testing.cluster import Cluster


@pytest.fixture
def ottla_cluster_factory() -> Iterator[Callable[..., Cluster]]:
    """Starts a cluster for each call, with the arguments of `ottla.testing.Cluster`; all end with the test."""
    from ottla.testing.cluster import Cluster

    with ExitStack() as clusters:

        def start(**settings: Any) -> Cluster:
            return clusters.enter_context(Cluster(**settings))

        yield start


@pytest.fixture
def ottla(ottla_cluster_factory: Callable[..., Cluster]) -> Cluster:
    """A fresh cluster of one broker, with its data in a temporary directory."""
    return ottla_cluster_factory()

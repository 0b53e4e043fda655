"""Pytest fixtures: real brokers on real ports, for tests of programs that use Ottla.

Tests take the fixtures as arguments:

    def test_orders(ottla):
        ottla.create_topic("orders")
        producer = Producer({"bootstrap.servers": ottla.bootstrap_servers})

    def test_orders_when_a_leader_dies(ottla_cluster):
        ottla_cluster.create_topic("orders")
        ottla_cluster.kill(ottla_cluster.leader_of("orders"))

    def test_billing(ottla):
        ottla.create_topic("orders", partitions=3)
        start_my_consumers(ottla.bootstrap_servers)
        ottla.wait_for_assignment("billing", members=2)
        send_orders(ottla.bootstrap_servers)
        ottla.wait_for_lag_zero("billing")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ottla.testing.cluster import Cluster

BROKERS = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--ottla-brokers`, the number of brokers that the fixture `ottla_cluster` starts."""
    parser.getgroup("ottla").addoption(
        "--ottla-brokers",
        type=int,
        default=BROKERS,
        metavar="N",
        help=f"How many brokers the fixture ottla_cluster starts ({BROKERS}).",
    )


@pytest.fixture
def ottla_cluster_factory() -> Iterator[Callable[..., Cluster]]:
    """Starts a cluster for each call, with the arguments of `ottla.testing.Cluster`. All of them end with the test."""
    from ottla.testing.cluster import Cluster

    with ExitStack() as clusters:

        def start(**settings: Any) -> Cluster:
            return clusters.enter_context(Cluster(**settings))

        yield start


@pytest.fixture
def ottla(ottla_cluster_factory: Callable[..., Cluster]) -> Cluster:
    """A fresh broker with its data in a temporary directory."""
    return ottla_cluster_factory()


@pytest.fixture
def ottla_cluster(ottla_cluster_factory: Callable[..., Cluster], request: pytest.FixtureRequest) -> Cluster:
    """A fresh cluster of three brokers, or of `--ottla-brokers`. Each can be killed, stopped and restarted."""
    return ottla_cluster_factory(brokers=request.config.getoption("--ottla-brokers"))

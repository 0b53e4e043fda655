"""One Spark session and one broker for all tests of a run; each test has its own topics.

Set OTTLA_CONFORMANCE_BOOTSTRAP=host:port to run the same tests against another broker, such as Apache Kafka.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.bench.suite.maven import MavenUnavailableError
from ottla.bench.suite.spark_connector_jars import class_path, connector_libraries
from ottla.spark.session import ON_A_LAPTOP, new_session
from ottla.testing import Cluster
from tests.spark.topics import with_admin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TIMEOUT_S = 900
"""A test interrupted in a JVM call leaves a session that no later test can use, so only hung tests may time out."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def connector() -> str | MavenUnavailableError:
    """The class path of Spark's own Kafka connector, for comparison; or why it is not available."""
    try:
        return class_path(connector_libraries())
    except MavenUnavailableError as reason:
        return reason


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, connector: str | MavenUnavailableError) -> Iterator[SparkSession]:
    """Python workers find the tests' own modules too."""
    directory = tmp_path_factory.mktemp("spark")
    java_options = ON_A_LAPTOP["spark.driver.extraJavaOptions"]
    root = str(Path(__file__).resolve().parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    session = new_session(
        "tests",
        settings={
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.local.dir": str(directory / "local"),
            "spark.driver.extraJavaOptions": f"{java_options} -Dderby.system.home={directory}",
            # Not on the class path: there it would precede Spark's own jars, and a class archive would not match.
            "spark.jars": connector.replace(os.pathsep, ",") if isinstance(connector, str) else "",
        },
    )
    yield session
    session.stop()


class ClusterElsewhere(Cluster):
    """Brokers started by someone else."""

    def __init__(self, servers: str) -> None:
        super().__init__()
        self._servers = servers

    @property
    def bootstrap_servers(self) -> str:
        return self._servers

    def create_topic(self, name: str, partitions: int = 1, *, replication_factor: int = -1, **configs: object) -> None:
        named = {key.replace("_", "."): str(value) for key, value in configs.items()}
        with_admin(self._servers, lambda admin: admin.create_topic(name, partitions=partitions, configs=named))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A broker in this process, on a real port: `cluster.bootstrap_servers`."""
    if elsewhere := os.environ.get("OTTLA_CONFORMANCE_BOOTSTRAP"):
        yield ClusterElsewhere(elsewhere)
        return
    with Cluster() as running:
        yield running


_numbers = itertools.count(1)
_run = uuid.uuid4().hex[:6]


@pytest.fixture
def new_topic(cluster: Cluster) -> Callable[..., str]:
    """Creates a topic with a unique name: `new_topic(partitions=2, retention_ms=1000)`."""

    def create(partitions: int = 1, *, prefix: str = "topic", **configs: object) -> str:
        name = f"{prefix}-{_run}-{next(_numbers)}"
        cluster.create_topic(name, partitions, replication_factor=-1, **configs)
        return name

    return create

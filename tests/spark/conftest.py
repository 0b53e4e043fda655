"""One Spark session and one broker for all tests of a run; each test has topics of its own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.spark.session import ON_A_LAPTOP, new_session
from ottla.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
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
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A broker in this process, on a real port: `cluster.bootstrap_servers`."""
    with Cluster() as running:
        yield running


_numbers = itertools.count(1)


@pytest.fixture
def new_topic(cluster: Cluster) -> Callable[..., str]:
    """Creates a topic with a name that no other test has: `new_topic(partitions=2, retention_ms=1000)`."""

    def create(partitions: int = 1, *, prefix: str = "topic", **configs: object) -> str:
        name = f"{prefix}-{next(_numbers)}"
        cluster.create_topic(name, partitions, replication_factor=-1, **configs)
        return name

    return create

"""The jars of Spark's own Kafka connector, which is not in PySpark's wheel: by Maven, into a cache folder, once."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ottla.bench.suite.maven import cached_jars, resolved_jars

POM = Path(__file__).with_name("spark-connector-pom.xml")
NEEDED = (
    "spark-sql-kafka-0-10_2.13",
    "spark-token-provider-kafka-0-10_2.13",
    "kafka-clients",
    "commons-pool2",
)
"""What Spark does not have itself: a second copy of what it has would only be in the way."""


def connector_version() -> str:
    """The one that the pom names."""
    found = re.search(r"<artifactId>spark-sql-kafka[^<]*</artifactId>\s*<version>([^<]+)<", POM.read_text("utf-8"))
    assert found is not None, "the pom names the connector's version"
    return found.group(1)


def connector_libraries() -> Path:
    """The folder of the jars. Fetches them if they are not there. MavenUnavailableError says why that cannot be."""
    return resolved_jars(POM, _name(), only=NEEDED)


def cached_connector() -> Path | None:
    """The same, without fetching anything."""
    folder = cached_jars(POM, _name())
    return folder if folder.exists() else None


def class_path(folder: Path) -> str:
    """For `spark.driver.extraClassPath`."""
    return os.pathsep.join(map(str, sorted(folder.glob("*.jar"))))


def _name() -> str:
    return f"spark-connector-{connector_version()}"

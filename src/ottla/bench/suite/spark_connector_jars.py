"""Resolves the jars of Spark's own Kafka connector, which PySpark's wheel lacks, with Maven into a cache directory."""

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
"""The jars that Spark lacks; a second copy of those it has would only get in the way."""


def connector_version() -> str:
    """Returns the version that the pom names."""
    found = re.search(r"<artifactId>spark-sql-kafka[^<]*</artifactId>\s*<version>([^<]+)<", POM.read_text("utf-8"))
    assert found is not None, "the pom names the connector's version"
    return found.group(1)


def connector_libraries() -> Path:
    """Returns the directory of the jars. Downloads missing ones, or raises MavenUnavailableError with the reason."""
    return resolved_jars(POM, _name(), only=NEEDED)


def cached_connector() -> Path | None:
    """Returns the directory of the jars, or None if they were not downloaded."""
    folder = cached_jars(POM, _name())
    return folder if folder.exists() else None


def class_path(folder: Path) -> str:
    """Returns the class path for `spark.driver.extraClassPath`."""
    return os.pathsep.join(map(str, sorted(folder.glob("*.jar"))))


def _name() -> str:
    return f"spark-connector-{connector_version()}"

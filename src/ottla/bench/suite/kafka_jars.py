"""Resolves Apache Kafka's jars with Maven into a cache directory, once."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from ottla.bench.suite.maven import MavenUnavailableError, resolved_jars

POM = Path(__file__).with_name("kafka-pom.xml")
JAVA_MAJOR_MIN = 17


class KafkaUnavailableError(Exception):
    """Apache Kafka is not available here. The message says why."""


def kafka_version() -> str:
    """Returns the version that the pom names."""
    found = re.search(r"<artifactId>kafka_2\.13</artifactId>\s*<version>([^<]+)<", POM.read_text(encoding="utf-8"))
    assert found is not None, "the pom names Kafka's version"
    return found.group(1)


def kafka_libraries() -> Path:
    """Returns the directory of the jars. Downloads them if they are missing, which takes a minute or two."""
    require_java()
    try:
        return resolved_jars(POM, f"kafka-{kafka_version()}")
    except MavenUnavailableError as problem:
        raise KafkaUnavailableError(str(problem)) from problem


def require_java() -> str:
    """Returns the path of Java. Raises KafkaUnavailableError if it is missing or too old."""
    java = shutil.which("java")
    if java is None:
        raise KafkaUnavailableError(f"java was not found; Apache Kafka needs Java {JAVA_MAJOR_MIN} or newer")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version.group(1)) < JAVA_MAJOR_MIN:
        raise KafkaUnavailableError(f"Apache Kafka needs Java {JAVA_MAJOR_MIN} or newer, not {said.splitlines()[:1]}")
    return java

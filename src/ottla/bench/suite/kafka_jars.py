"""Apache Kafka's jars: resolved by Maven into a cache folder, once."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

POM = Path(__file__).with_name("kafka-pom.xml")
CACHE_VARIABLE = "OTTLA_BENCH_CACHE"
JAVA_MAJOR_MIN = 17
MAVEN_TIMEOUT_S = 900.0


class KafkaUnavailableError(Exception):
    """Apache Kafka cannot be had here. Says why."""


def kafka_version() -> str:
    """The one that the pom names."""
    found = re.search(r"<artifactId>kafka_2\.13</artifactId>\s*<version>([^<]+)<", POM.read_text(encoding="utf-8"))
    assert found is not None, "the pom names Kafka's version"
    return found.group(1)


def cache_directory() -> Path:
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ottla"


def kafka_libraries() -> Path:
    """The folder of the jars. Fetches them if they are not there, which takes a minute or two."""
    require_java()
    digest = hashlib.sha256(POM.read_bytes()).hexdigest()[:8]
    folder = cache_directory() / f"kafka-{kafka_version()}-{digest}"
    if folder.exists():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailableError("there is no mvn (Maven) to fetch Apache Kafka's jars with")
    draft = folder.with_name(f"{folder.name}.{os.getpid()}")
    draft.mkdir(parents=True)
    try:
        _fetch(maven, draft)
        draft.rename(folder)
    except OSError:
        if not folder.exists():  # or somebody else was faster
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _fetch(maven: str, folder: Path) -> None:
    command = [maven, "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MAVEN_TIMEOUT_S)
    except subprocess.TimeoutExpired as cause:
        raise KafkaUnavailableError(f"Maven did not fetch its jars in {MAVEN_TIMEOUT_S:.0f} s") from cause
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        raise KafkaUnavailableError(f"Maven could not fetch its jars: {(lines or ['no reason given'])[0]}")


def require_java() -> str:
    """Its path."""
    java = shutil.which("java")
    if java is None:
        raise KafkaUnavailableError(f"there is no java, and Apache Kafka needs Java {JAVA_MAJOR_MIN} or newer")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version.group(1)) < JAVA_MAJOR_MIN:
        raise KafkaUnavailableError(f"Apache Kafka needs Java {JAVA_MAJOR_MIN} or newer, not {said.splitlines()[:1]}")
    return java

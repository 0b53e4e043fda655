"""Fetches what the tests need beside Python packages: kcat, the Java client with its driver, Apache Kafka's brokers,
Spark's own Kafka connector.

Whatever cannot be had here is named and left out; the tests that need it say so in pytest's summary.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
JAVA_SOURCES = ROOT / "tests" / "conformance" / "java"
JAVA_CACHE = ROOT / ".cache" / "java"
JAVA_PROGRAMS = ("ChainWorker", "Driver", "GroupMember", "Transactions", "TransactionsAdmin")
JAVA_MAJOR_MIN = 17


def main() -> int:
    steps = {
        "kcat": prepare_kcat,
        "Java client": prepare_java,
        "Apache Kafka": prepare_kafka,
        "Spark's Kafka connector": prepare_spark_connector,
    }
    for name, prepare in steps.items():
        try:
            print(f"{name}: {prepare()}")
        except (OSError, subprocess.CalledProcessError, LookupError) as problem:
            print(f"{name}: left out, {problem}", file=sys.stderr)
    return 0


def prepare_kcat() -> str:
    return f"ready ({installed('kcat', 'kcat')})"


def prepare_java() -> str:
    if java_is_ready():
        return "ready"
    javac = installed("javac", "default-jdk-headless")
    maven = installed("mvn", "maven")
    libraries = JAVA_CACHE / "libraries"
    shutil.rmtree(JAVA_CACHE, ignore_errors=True)
    JAVA_CACHE.mkdir(parents=True)
    run(maven, "-q", "-B", "-f", str(JAVA_SOURCES / "pom.xml"), "dependency:copy-dependencies",
        f"-DoutputDirectory={libraries}")  # fmt: skip
    run(javac, "--release", str(JAVA_MAJOR_MIN), "-d", str(JAVA_CACHE / "classes"), "-cp", f"{libraries}/*",
        *(str(JAVA_SOURCES / f"{name}.java") for name in JAVA_PROGRAMS))  # fmt: skip
    return "ready, fetched and compiled"


def prepare_kafka() -> str:
    """Its brokers, for the test of the benchmark suite; the suite itself knows where they are kept."""
    from ottla.bench.suite.kafka_jars import KafkaUnavailableError, kafka_libraries

    installed("java", "default-jdk-headless")
    installed("mvn", "maven")
    try:
        return f"ready ({kafka_libraries().name})"
    except KafkaUnavailableError as problem:
        raise LookupError(str(problem)) from problem


def prepare_spark_connector() -> str:
    """To compare our source and sink with."""
    from ottla.bench.suite.maven import MavenUnavailableError
    from ottla.bench.suite.spark_connector_jars import connector_libraries

    installed("mvn", "maven")
    try:
        return f"ready ({connector_libraries().name})"
    except MavenUnavailableError as problem:
        raise LookupError(str(problem)) from problem


def java_is_ready() -> bool:
    """Compiled after the last change of its sources."""
    compiled = [JAVA_CACHE / "classes" / f"{name}.class" for name in JAVA_PROGRAMS]
    sources = [JAVA_SOURCES / "pom.xml", *(JAVA_SOURCES / f"{name}.java" for name in JAVA_PROGRAMS)]
    return all(path.exists() for path in compiled) and (
        min(path.stat().st_mtime for path in compiled) >= max(path.stat().st_mtime for path in sources)
    )


def installed(program: str, package: str) -> str:
    """The program's path. Installs its package where this user may."""
    if (path := shutil.which(program)) is not None:
        return path
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise LookupError(f"{program} is not installed and only root on a Debian system could install it here")
    print(f"installing {package} for {program} ...", flush=True)
    run("apt-get", "-qq", "update")
    run("apt-get", "-qq", "install", "-y", "--no-install-recommends", package)
    if (path := shutil.which(program)) is None:
        raise LookupError(f"{program} is missing after its package {package} was installed")
    return path


def run(*command: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last_line = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise OSError(f"{command[0]} failed: {last_line}")


if __name__ == "__main__":
    sys.exit(main())

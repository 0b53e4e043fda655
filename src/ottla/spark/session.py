"""A Spark session that starts fast on a laptop, and says what to do where there is no Java.

    from ottla.spark.session import new_session

    spark = new_session("clicks")
    spark.read.format("ottla").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "clicks").load()

With a `master` that is not local only what is true on a cluster is set; `settings` win over everything here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[2,4]"
"""Two cores; a task that fails is tried four times, as on a cluster."""
JAVA_VERSION_MIN = 17

EVERYWHERE = {
    "spark.sql.python.filterPushdown.enabled": "true",  # filters on time and offset reach the source
    "spark.sql.session.timeZone": "UTC",
}
ON_A_LAPTOP = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Renames inside a local directory are atomic, and this class of the two is the one that starts no extra call.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


class JavaMissingError(RuntimeError):
    """Spark cannot start here; the message says what to install."""


def new_session(app: str, *, master: str = LOCAL, settings: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process: one that is there already is given back, with these settings applied to it.

    JavaMissingError where no Java is found that Spark can run on.
    """
    from pyspark.sql import SparkSession

    java_home = find_java_home()
    if java_home is not None:
        os.environ.setdefault("JAVA_HOME", java_home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark would take the first python3 on the path
    chosen = dict(EVERYWHERE)
    if is_local(master):
        chosen |= ON_A_LAPTOP
    builder = SparkSession.builder.appName(app).master(master)
    for name, value in (chosen | dict(settings or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def find_java_home() -> str | None:
    """The JAVA_HOME of the Java that Spark will use; None if it is the one on the path. Raises JavaMissingError."""
    named = os.environ.get("JAVA_HOME")
    java = str(Path(named, "bin", "java")) if named else shutil.which("java")
    if java is None:
        raise JavaMissingError(
            f"Spark needs Java {JAVA_VERSION_MIN} or later, and there is no java on the path. {_fix()}"
        )
    version = _java_version(java)
    if version is None:
        where = f"JAVA_HOME={named}" if named else java
        raise JavaMissingError(f"Spark needs Java {JAVA_VERSION_MIN} or later, and {where} does not run. {_fix()}")
    if version < JAVA_VERSION_MIN:
        raise JavaMissingError(f"Spark needs Java {JAVA_VERSION_MIN} or later, and {java} is {version}. {_fix()}")
    return named


def _java_version(java: str) -> int | None:
    """The first number of `java -version`; None if that is no Java that runs."""
    try:
        ended = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', ended.stderr + ended.stdout)
    return int(found.group(1)) if ended.returncode == 0 and found else None


def _fix() -> str:
    commands = {
        "apt-get": "apt-get install openjdk-17-jre-headless",
        "dnf": "dnf install java-17-openjdk-headless",
        "apk": "apk add openjdk17-jre-headless",
        "brew": "brew install openjdk@17",
    }
    known = [command for tool, command in commands.items() if shutil.which(tool)]
    first = f'Install it ("{known[0]}")' if known else "Install a Java runtime, 17 or 21"
    return f"{first}, or set JAVA_HOME to the directory of one."

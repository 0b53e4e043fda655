"""A Spark session that starts fast on a laptop, and tells the user what to do if there is no Java.

    from ottla.spark.session import new_session

    spark = new_session("clicks")
    spark.read.format("ottla").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "clicks").load()

With a `master` that is not local, only settings that suit a cluster are applied. `settings` override everything here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.spark.jvm.fast_start import JAVA_OPTIONS, archive_options, home_of_jvm, lean_home
from ottla.spark.jvm.java import JavaMissingError, find_java
from ottla.spark.jvm.quiet_start import quiet_options
from ottla.spark.reader_environment import settle_reader_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JavaMissingError", "is_local", "new_session"]

LOCAL = "local[2,4]"
"""Two cores; a failed task is tried four times, as on a cluster."""

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
    JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.python.daemon.module": "ottla.spark.worker_daemon",  # workers start with their modules imported
    # Renames within a local directory are atomic, and of the two implementations this one makes no extra call.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def new_session(app: str, *, master: str = LOCAL, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Returns the session of this process. An existing session is returned with these settings applied.

    Raises JavaMissingError if there is no Java that Spark can run on.
    """
    from pyspark.sql import SparkSession

    java = find_java()
    if java.home is not None:
        os.environ["JAVA_HOME"] = java.home
    chosen = {**EVERYWHERE, **(ON_A_LAPTOP if is_local(master) else {}), **(settings or {})}
    # Other masters upload the zip.
    home = lean_home(chosen) if is_local(master) or master.startswith("spark://") else None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise Spark uses the first python3 on the path
    if (options := chosen.get(JAVA_OPTIONS)) is not None:  # otherwise spark-defaults.conf applies
        fast = archive_options(java, home) if "Archive" not in options else ""
        chosen[JAVA_OPTIONS] = " ".join(filter(None, [options, fast, quiet_options(home, chosen, options)]))
    builder = SparkSession.builder.appName(app).master(master)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    with home_of_jvm(home):
        spark = builder.getOrCreate()
    _make_active(spark)
    settle_reader_environment(spark)
    return spark


def _make_active(spark: SparkSession) -> None:
    """Makes this the active session of the calling thread.

    The JVM has one active session per thread, PySpark sets it only when it creates a session, and Spark looks up
    registered sources only in the active session. A session that another thread created would not find them.
    """
    java_sessions = spark.sparkContext._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr] # not None here
    java_sessions.setActiveSession(spark._jsparkSession)


def is_local(master: str) -> bool:
    """Returns whether the master runs in this process, as `local` or `local[N]`."""
    return master == "local" or master.startswith("local[")

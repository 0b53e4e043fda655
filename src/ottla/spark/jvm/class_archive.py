"""Creates the class archive that makes Spark start faster (`fast_start`).

It runs Spark once in a separate process and lets the JVM record the classes that it loaded; the JVM must exit to write
the archive. `python -m ottla.spark.jvm.class_archive FILE` is that process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.archive.failures import PipelineError
from ottla.file_sync import sync_path
from ottla.spark.jvm.fast_start import JAVA_OPTIONS, archive_place, lean_home, recording_options
from ottla.spark.jvm.java import find_java
from ottla.spark.session import ON_A_LAPTOP, new_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("ottla.spark")
TIMEOUT_S = 900


def prepare(*, again: bool = False) -> Path:
    """Returns the archive, and creates it if it does not exist or `again` is true.

    Raises PipelineError if that is not possible here; sessions work without it.
    """
    java = find_java()
    home = lean_home({})
    if home is None:
        raise PipelineError("SPARK_HOME or PYSPARK_PYTHON is set, so Spark starts with that configuration")
    try:
        place = archive_place(java, home)
    except OSError as failure:
        raise PipelineError(f"no directory for the class archive: {failure}") from failure
    if place.exists() and not again:
        return place
    fresh = Path(tempfile.mkdtemp(prefix=f".{place.stem}.", dir=place.parent))
    try:
        _record(fresh / place.name)
        os.replace(fresh / place.name, place)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return place


def _record(place: Path) -> None:
    """Records the archive and syncs it to disk: the JVM checks the origin of an archive, but not every byte."""
    command = [sys.executable, "-m", "ottla.spark.jvm.class_archive", str(place)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise PipelineError(f"Spark did not end within {TIMEOUT_S} s; no class archive was created") from None
    if ended.returncode or not place.exists():
        said = ended.stderr.strip().splitlines()
        raise PipelineError(f"no class archive was created: {said[-1] if said else 'this Java does not support it'}")
    sync_path(place)


def main() -> None:
    """Runs Spark once and waits until its JVM has written the archive."""
    from pyspark import SparkContext

    options = f"{ON_A_LAPTOP[JAVA_OPTIONS]} {recording_options(Path(sys.argv[1]))}"
    spark = new_session("ottla prepare", settings={JAVA_OPTIONS: options})
    with (
        tempfile.TemporaryDirectory() as directory,
        contextlib.suppress(Exception),
    ):  # classes loaded before a failure still count
        run_a_little_of_everything(spark, directory)
    spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None, "there was a session"
    jvm: subprocess.Popen[bytes] = gateway.proc
    assert jvm.stdin is not None, "PySpark ends its JVM through it"
    jvm.stdin.close()
    sys.exit(jvm.wait(TIMEOUT_S))


def run_a_little_of_everything(spark: SparkSession, directory: str) -> None:
    """Exercises what jobs and queries do, without a broker: files, SQL, and a stream with groups and a watermark."""
    numbers = spark.range(20).selectExpr("id % 3 AS k", "timestamp_seconds(id) AS ts", "string(id) AS value")
    numbers.write.parquet(f"{directory}/numbers")
    spark.read.parquet(f"{directory}/numbers").groupBy("k").count().orderBy("k").collect()
    found = spark.readStream.schema(numbers.schema).parquet(f"{directory}/numbers").withWatermark("ts", "1 minute")
    counts = found.groupBy("ts", "value").count().selectExpr("to_json(struct(value, count)) AS value")
    writing = counts.writeStream.format("noop").option("checkpointLocation", f"{directory}/counts")
    writing.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()

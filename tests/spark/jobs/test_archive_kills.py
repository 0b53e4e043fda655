"""Kills the whole job (-9) at random points, with its JVM and its workers: no gap, no overlap, no duplicate."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.archive.manifest import ManifestLog
from ottla.archive.store import Store
from ottla.archive.verification import verify
from ottla.spark.jobs.archive import archive_available
from ottla.spark.jobs.live_log import BrokerLog
from ottla.testing import Cluster
from tests.spark.jobs.test_archive import archived_contents, live_contents, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = 2
RECORDS = 6_000
TIMEOUT_S = 200.0


def start(cluster: Cluster, topic: str, directory: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ottla", "pipeline", "archive", "run", topic, "--into", str(directory)]
    with (directory.parent / "job.log").open("ab") as log:
        return subprocess.Popen(
            [*command, "--bootstrap", cluster.bootstrap_servers, *options],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def kill(job: subprocess.Popen[bytes]) -> None:
    """Kills it with its JVM and its workers, which are in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()


def commits(store: Store) -> int:
    return len(store.list_files("_manifest"))


def test_killed_jobs_leave_an_archive_without_gap_or_overlap(
    spark: SparkSession, cluster: Cluster, new_topic: Callable[..., str], tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    topic, directory = new_topic(2), tmp_path / "archive"
    store = Store(str(directory))
    send(cluster.bootstrap_servers, topic, RECORDS, partitions=2)
    for _ in range(KILLS):
        job = start(cluster, topic, directory, "--batch-offsets", "40", "--no-merge")
        try:
            wanted = commits(store) + chance.randrange(1, 8)
            deadline = time.monotonic() + TIMEOUT_S
            while commits(store) < wanted:
                assert job.poll() is None, (tmp_path / "job.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(chance.random() * 0.5)
        finally:
            kill(job)
        assert verify(store, deep=True).faults == []
    assert 0 < sum(file.rows for file in ManifestLog(store).load().files.values()) < RECORDS

    log = BrokerLog(cluster.bootstrap_servers)
    list(archive_available(spark, log, store, [topic]))
    assert verify(store, deep=True).findings == []
    assert archived_contents(spark, store) == live_contents(spark, log, topic)

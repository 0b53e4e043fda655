"""Ctrl-C in `ottla sql` before the first row: a short message and exit code 130, whatever Spark is doing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ottla.testing import Cluster
from tests.spark.topics import NewTopic

QUIET = {"", "ottla: interrupted"}
STARTING = "starting Spark"


@pytest.mark.parametrize("after_start_s", [None, 0.0, 2.0, 4.0, 7.0])
def test_an_interruption_before_the_first_row(
    cluster: Cluster, new_topic: NewTopic, tmp_path: Path, after_start_s: float | None
) -> None:
    """None: before Spark starts. The topic is empty, so that no row ever arrives."""
    topic = new_topic()
    statements = f"CREATE STREAM s (a INT) WITH (topic = '{topic}', format = 'json'); SELECT a FROM s"
    command = [sys.executable, "-m", "ottla", "sql", statements, "-b", cluster.bootstrap_servers]
    with subprocess.Popen(
        [*command, "--directory", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        line = ""
        if after_start_s is None:
            time.sleep(0.4)
        else:
            while not line.startswith(STARTING):
                line = process.stderr.readline()
                assert line, "it ended"
            time.sleep(after_start_s)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert printed == ""
    told = [each for each in errors.splitlines() if each not in QUIET and "stream s" not in each]
    assert [each for each in told if not each.startswith(STARTING)] == []

"""Real drivers under SIGKILL: the output is the input, once. The same harness catches a naive sink.

A start of Spark is dear, so that a few steps are tried here; `test_sink_decisions` has them all.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ottla.testing import Cluster
from tests.spark.topics import NewTopic, produce, values_of

ROOT = Path(__file__).resolve().parents[2]
ROWS = [b"%04d" % number for number in range(300)]
BATCH_ROWS = 50
TIMEOUT_S = 600
DEATHS: list[dict[str, str]] = [
    {"die.at": "before record", "die.batch": "0"},
    {"die.at": "written", "die.batch": "1"},
    {"die.at": "after one", "die.batch": "2"},
    {"die.at": "after record", "die.batch": "3", "die.survive": "true"},
]


class Drivers:
    """Drivers of one query, one after another, on one checkpoint."""

    def __init__(self, cluster: Cluster, source: str, sink: str, directory: Path) -> None:
        self._plan = {
            "servers": cluster.bootstrap_servers,
            "source": source,
            "sink": sink,
            "checkpoint": str(directory / "checkpoint"),
            "batch_rows": BATCH_ROWS,
        }
        self._log = directory / "driver.log"

    def run(self, sink_format: str, tasks: int, die: dict[str, str] | None = None) -> int:
        """Its exit code."""
        plan: dict[str, Any] = {**self._plan, "format": sink_format, "tasks": tasks, "die": die or {}}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with self._log.open("ab") as log:
            driver = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.killed_driver", json.dumps(plan)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                return driver.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
                raise

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]


@pytest.mark.timeout(3000)
def test_a_driver_killed_at_several_steps(cluster: Cluster, new_topic: NewTopic, tmp_path: Path) -> None:
    """Each death is a batch later than the last, and each start has another number of tasks."""
    source, sink = new_topic(2), new_topic(2)
    produce(cluster.bootstrap_servers, source, ROWS, key=lambda number: b"%d" % number)
    drivers = Drivers(cluster, source, sink, tmp_path)
    for number, death in enumerate(DEATHS):
        assert drivers.run("ottla_dying", 2 + number % 2, death) == -signal.SIGKILL, (death, drivers.log())
    assert drivers.run("ottla_dying", 3) == 0, drivers.log()
    counts = Counter(values_of(cluster.bootstrap_servers, sink))
    assert counts == Counter(ROWS)


@pytest.mark.timeout(3000)
def test_the_harness_catches_a_naive_sink(cluster: Cluster, new_topic: NewTopic, tmp_path: Path) -> None:
    source, sink = new_topic(2), new_topic(2)
    produce(cluster.bootstrap_servers, source, ROWS, key=lambda number: b"%d" % number)
    drivers = Drivers(cluster, source, sink, tmp_path)
    assert drivers.run("naive_dying", 2, DEATHS[0]) == -signal.SIGKILL, drivers.log()
    assert drivers.run("naive_dying", 3) == 0, drivers.log()
    counts = Counter(values_of(cluster.bootstrap_servers, sink))
    assert set(counts) == set(ROWS)
    assert sum(counts.values()) > len(ROWS), "the batch of the death is there twice"

"""Kills real drivers with SIGKILL: the output equals the input, once. The same harness detects a naive sink.

Starting Spark is expensive, so only a few steps are tried here; `test_sink_decisions` has them all.
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
COPIED, NAIVE = "ottla_dying", "naive_dying"
DEATHS: list[tuple[str, dict[str, str]]] = [
    (NAIVE, {"die.at": "before record", "die.batch": "0"}),
    (COPIED, {"die.at": "written", "die.batch": "1"}),
    (COPIED, {"die.at": "after one", "die.batch": "2"}),
    (COPIED, {"die.at": "after record", "die.batch": "3", "die.survive": "true"}),
]
"""The sink and step at which the driver dies. The naive sink's comes first: its rows of batch 0 are written then, and
Spark does not know it."""


class Drivers:
    """Successive drivers on the same checkpoints; each copies one topic through both sinks."""

    def __init__(self, cluster: Cluster, source: str, sinks: dict[str, str], directory: Path) -> None:
        self._plan = {"servers": cluster.bootstrap_servers, "source": source, "batch_rows": BATCH_ROWS}
        self._sinks = sinks
        self._directory = directory
        self._log = directory / "driver.log"

    def run(self, tasks: int, dying: str | None = None, die: dict[str, str] | None = None) -> int:
        """Returns the exit code."""
        queries = [
            {"format": name, "sink": sink, "checkpoint": str(self._directory / name), "die": {}}
            | ({"die": die} if name == dying else {})
            for name, sink in self._sinks.items()
        ]
        plan: dict[str, Any] = {**self._plan, "tasks": tasks, "queries": queries}
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
    """Each start has another number of tasks. Under the same deaths, the errors of a naive sink are detected."""
    source, sinks = new_topic(2), {COPIED: new_topic(2), NAIVE: new_topic(2)}
    produce(cluster.bootstrap_servers, source, ROWS, key=lambda number: b"%d" % number)
    drivers = Drivers(cluster, source, sinks, tmp_path)
    for number, (dying, death) in enumerate(DEATHS):
        assert drivers.run(2 + number % 2, dying, death) == -signal.SIGKILL, (dying, death, drivers.log())
    assert drivers.run(3) == 0, drivers.log()
    copied, naive = (Counter(values_of(cluster.bootstrap_servers, sinks[name])) for name in (COPIED, NAIVE))
    assert copied == Counter(ROWS)
    assert set(naive) == set(ROWS)
    assert sum(naive.values()) > len(ROWS), "the harness catches it: what a death left is there twice"

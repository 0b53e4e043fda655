"""Kills on a real Spark cluster: a short version of `python -m tests.spark.cluster_kills`.

One driver dies at a step that a naive sink cannot survive; then executors, a task and a broker die at arbitrary times.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.client import ConsumerRecord
from ottla.testing.cluster_processes import ClusterProcesses
from tests.spark.cluster_kills import (
    BROKER_SETTINGS,
    QUERIES,
    SOURCE,
    Driver,
    Siege,
    Verdict,
    compare,
    fill,
    row,
    wait_for_batches,
)
from tests.spark.standalone import StandaloneSpark
from tests.spark.topics import read_committed

BATCHES, BATCH_ROWS = 6, 60
ROWS = BATCHES * BATCH_ROWS
AT_COMMIT = {"die.at": "before record", "die.batch": "1"}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("brokers"), config=BROKER_SETTINGS) as running:
        fill(running.bootstrap, ROWS, QUERIES)
        yield running


@pytest.mark.timeout(900)
def test_a_cluster_whose_parts_are_killed(brokers: ClusterProcesses, tmp_path: Path, seed: int) -> None:
    """The driver dies when the naive sink has written a batch that Spark has not recorded yet."""
    copied, shuffled, naive = QUERIES
    with StandaloneSpark(tmp_path / "spark") as spark:
        plan = {
            "master": spark.master,
            "servers": brokers.bootstrap,
            "source": SOURCE,
            "batch_rows": BATCH_ROWS,
        }
        dying = Driver(tmp_path, plan, (copied, shuffled, replace(naive, batch_rows_factor=1, options=AT_COMMIT)))
        driver = Driver(tmp_path, plan, QUERIES)
        try:
            dying.start()
            assert dying.wait() == -signal.SIGKILL, dying.log.read_text(errors="replace")[-4000:]
            siege = Siege(brokers, spark, driver, random.Random(seed))
            driver.start()
            for victim in ("executor", "broker"):
                wait_for_batches(driver, driver.all_batches() + 1)
                siege.strike(victim)
            siege.finish()
        finally:
            dying.kill()
            driver.kill()
    for query in (copied, shuffled):
        verdict = compare(ROWS, read_committed(brokers.bootstrap, query.name))
        assert verdict.is_exact, (query.name, verdict)
        assert not (query.keeps_order and verdict.out_of_order), verdict
    verdict = compare(ROWS, read_committed(brokers.bootstrap, naive.name))
    assert (verdict.missing, verdict.doubled > 0) == (0, True), "the harness catches the naive sink"


def copy_of(numbers: Sequence[int]) -> list[ConsumerRecord]:
    return [ConsumerRecord("copied", 0, at, 0, *row(number), ()) for at, number in enumerate(numbers)]


def test_what_is_wrong_with_a_copy_is_counted() -> None:
    numbers = list(range(24))
    assert compare(24, copy_of(numbers)) == Verdict(0, 0, 0, 0)
    assert compare(24, copy_of(numbers[1:])) == Verdict(1, 0, 0, 0)
    assert compare(24, copy_of([*numbers, 23])) == Verdict(0, 1, 0, 0)
    assert compare(24, copy_of([*numbers, 99])) == Verdict(0, 0, 1, 0)
    assert compare(24, copy_of([*numbers[12:], *numbers[:12]])) == Verdict(0, 0, 0, 12)

"""A campaign reports every seed, even if the worker process that runs it hangs or dies."""

from __future__ import annotations

import os
import re
import time
from collections import Counter

import pytest

from ottla.sim.world import UnhandledError, VirtualTimeoutError
from tests.simulation.campaign.display import Tally, progress_line, summary_lines
from tests.simulation.campaign.outcomes import DIED, ERROR, HUNG, LIVENESS, Failed, Outcome, failure_of
from tests.simulation.campaign.workers import run_all
from tests.simulation.cluster_run import Violation

DIES, HANGS, FAILS = 3, 5, 7


def run_badly(seed: int) -> Outcome:
    """Runs in the worker process."""
    if seed == DIES:
        os._exit(9)
    if seed == HANGS:
        time.sleep(600)
    failed = Failed("watermark", "watermark: went back") if seed == FAILS else None
    return Outcome(seed, failed, virtual_s=3600.0, acknowledged=10, faults=Counter({"kill": 2}))


@pytest.mark.parametrize("worker_count", [1, 3])
def test_every_seed_has_an_outcome_even_if_its_process_hangs_or_dies(worker_count: int) -> None:
    outcomes = {
        outcome.seed: outcome
        for outcome in run_all(range(10), worker_count, hung_after_s=2.0, beat_s=0.1, run=run_badly)
        if outcome is not None
    }
    assert set(outcomes) == set(range(10))
    found = {seed: outcome.failed.checker for seed, outcome in outcomes.items() if outcome.failed is not None}
    assert found == {DIES: DIED, HANGS: HUNG, FAILS: "watermark"}


def test_the_summary_adds_up_and_names_the_failures() -> None:
    tally = Tally(3)
    for seed in (6, FAILS):
        tally.add(run_badly(seed))
    assert progress_line(tally).startswith("2/3 seeds, 1 failed, ")
    text = "\n".join(summary_lines(tally))
    assert "2.00 h" in text
    assert "20 records" in text
    assert re.search(r"kill +4$", text, re.MULTILINE)
    assert f"--replay {FAILS}" in text


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "checker"),
    [
        (Violation("watermark", "went back"), "watermark"),
        (caused(UnhandledError("on broker-1"), Violation("order", "out of order")), "order"),
        (VirtualTimeoutError("not within 60 s; pending: all"), LIVENESS),
        (KeyError("offset"), ERROR),
        (AssertionError("inside a broker"), ERROR),
    ],
)
def test_a_crash_is_not_taken_for_a_checkers_word(error: Exception, checker: str) -> None:
    assert failure_of(error).checker == checker

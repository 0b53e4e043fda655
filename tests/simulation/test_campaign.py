"""A campaign reports every seed, even if the worker process that runs it hangs or dies."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter

import pytest

from ottla.sim.world import UnhandledError, VirtualTimeoutError
from tests.simulation.campaign.__main__ import jobs_of, seeds_of
from tests.simulation.campaign.display import Tallies, log_line, progress_line, reach_lines, summary_lines
from tests.simulation.campaign.outcomes import DIED, ERROR, HUNG, LIVENESS, Failed, Job, Kind, Outcome, failure_of
from tests.simulation.campaign.workers import run_all
from tests.simulation.cluster_run import Violation

DIES, HANGS, FAILS = 3, 5, 7


def run_badly(job: Job) -> Outcome:
    """Runs in the worker process."""
    seed = job.seed
    if seed == DIES:
        os._exit(9)
    if seed == HANGS:
        time.sleep(600)
    failed = Failed("watermark", "watermark: went back") if seed == FAILS else None
    return Outcome(seed, failed, virtual_s=3600.0, real_s=120.0, acknowledged=10, faults=Counter({"kill": 2}))


@pytest.mark.parametrize("worker_count", [1, 3])
def test_every_seed_has_an_outcome_even_if_its_process_hangs_or_dies(worker_count: int) -> None:
    outcomes = {
        outcome.seed: outcome
        for outcome in run_all(map(Job, range(10)), worker_count, hung_after_s=2.0, beat_s=0.1, run=run_badly)
        if outcome is not None
    }
    assert set(outcomes) == set(range(10))
    found = {seed: outcome.failed.checker for seed, outcome in outcomes.items() if outcome.failed is not None}
    assert found == {DIES: DIED, HANGS: HUNG, FAILS: "watermark"}


def test_the_summary_adds_up_and_names_the_failures() -> None:
    tallies = Tallies({Kind.CLUSTER: 3})
    for seed in (6, FAILS):
        tallies.add(run_badly(Job(seed)))
    assert progress_line(tallies).startswith("2/3 seeds, 1 failed, ")
    text = "\n".join(summary_lines(tallies.by_kind[Kind.CLUSTER]))
    assert "2.00 h" in text
    assert "20 records" in text
    assert re.search(r"rate of a worker +0\.50 virtual hours and 0 seeds a minute$", text, re.MULTILINE)
    assert re.search(r"kill +4$", text, re.MULTILINE)
    assert f"--replay {FAILS}" in text


# -- several kinds -----------------------------------------------------------------------------------------------------


def test_kinds_take_turns_until_all_their_seeds_have_run() -> None:
    jobs = jobs_of({Kind.WAL: [1, 2, 3], Kind.LOG: [7]}, minutes=None)
    assert list(jobs) == [Job(1, Kind.WAL), Job(7, Kind.LOG), Job(2, Kind.WAL), Job(3, Kind.WAL)]


def test_no_seed_begins_when_the_time_is_up() -> None:
    assert list(jobs_of({Kind.WAL: [1, 2, 3]}, minutes=0.0)) == []


def test_half_of_the_seeds_have_everything_that_was_added_later() -> None:
    assert seeds_of(Kind.WAL, 10, 4) == [10, 200_010, 11, 200_011]
    assert seeds_of(Kind.WAL, 300_000, 2) == [300_000, 300_001]
    assert len(seeds_of(Kind.CLUSTER, 300_000, 2)) > len(seeds_of(Kind.CLUSTER, 300_000, 2, with_pinned=False)) == 2


def reaching(kind: Kind, *names: str) -> Outcome:
    return Outcome(1, kind=kind, reached=Counter(dict.fromkeys(names, 3)))


def test_one_table_says_which_kind_reached_a_branch() -> None:
    rolled, lost = "a segment is rolled", "a lease is lost"
    tallies = Tallies({Kind.WAL: 2, Kind.LOG: 1})
    for outcome in (reaching(Kind.WAL, rolled, lost), reaching(Kind.WAL, rolled), reaching(Kind.LOG, rolled)):
        tallies.add(outcome)
    lines = reach_lines(tallies.by_kind.values())
    assert sum(rolled in line for line in lines) == 1
    assert re.search(rf"^ +3  {rolled} +wal 2, log 1$", "\n".join(lines), re.MULTILINE)
    assert re.search(rf"^ +1  {lost} +wal 1$", "\n".join(lines), re.MULTILINE)


def test_a_branch_that_is_reached_too_late_counts_as_not_reached() -> None:
    rolled, lost = "a segment is rolled", "a lease is lost"
    tallies = Tallies({Kind.WAL: 2, Kind.LOG: 2})
    for outcome in (reaching(Kind.WAL), reaching(Kind.WAL, lost), reaching(Kind.LOG, rolled)):
        tallies.add(outcome)
    assert tallies.unreached(2) is None, "one kind has run only one seed"
    tallies.add(reaching(Kind.LOG))
    within_one, within_two = tallies.unreached(1), tallies.unreached(2)
    assert within_one is not None
    assert within_two is not None
    assert rolled not in within_one
    assert set(within_one) - set(within_two) == {lost}


def test_a_line_of_the_log_has_the_branches_and_the_failure() -> None:
    outcome = Outcome(5, Failed("order", "order: wrong"), Kind.LONG, reached=Counter({"a": 2, "b": 0}))
    line = json.loads(log_line(outcome))
    assert (line["kind"], line["seed"], line["reached"]) == ("long", 5, ["a"])
    assert line["failed"].startswith("order: ")


# -- failures ----------------------------------------------------------------------------------------------------------


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

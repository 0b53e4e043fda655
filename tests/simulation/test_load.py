"""Seeds of `LoadRun`: overload costs no goodput, no ISR member, and delays no other client.

To repeat one seed: `python -m tests.simulation.campaign --load --replay SEED`.
"""

from __future__ import annotations

import os

import pytest

from ottla.broker.partition.backlog import Backlog
from tests.simulation.load_plan import LIMITS, LoadPlan
from tests.simulation.load_run import LAG_MAX_MS, LoadRun
from tests.simulation.violations import Violation

SEEDS = max(int(os.environ.get("OTTLA_SIM_SEEDS", "300")) // 30, 4)
PINNED = (1064, 1112, 1146, 1267, 1286, 1344, 1359)
"""Each found a bug: short waits did not count towards the drain rate, so the limit of a fast cluster fell (1064); the
limit was too low to keep a cluster with slow acknowledgements busy (1112, 1146), or to get fast again after a pause
(1359); each stalled partition had a limit of its own (1286); acknowledgements took longer than a follower may lag
(1267); the journal synced the same logs for each of its files (1344)."""
LONGER_THAN_THE_LAG_S = 2.5 * LAG_MAX_MS / 1000
"""Requests in flight, in seconds of work: a leader that accepted all of it would make its followers lag."""

SLOW_FOLLOWER = LoadPlan(
    durability="disk",
    partitions=1,
    batch_bytes=16 * 1024,
    acks=(-1,),
    disk_bytes_ms=1000.0,
    sync_ms=2.0,
    network_bytes_s=8e6,
    slow_follower=4.0,
    hiccup_s=0.0,
    limits=LIMITS,
)


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed-{seed}") for seed in sorted({*range(SEEDS), *PINNED})])
def test_overload_costs_nothing_but_the_producers_time(seed: int) -> None:
    executed(LoadRun(seed))


def executed(run: LoadRun) -> LoadRun:
    run.execute()
    run.check()
    return run


def test_producers_are_held_back() -> None:
    """Without throttling, the checks above show nothing."""
    assert executed(LoadRun(1, SLOW_FOLLOWER, drain_s=LONGER_THAN_THE_LAG_S)).waits > 10


def test_without_pacing_replicas_leave_the_isr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backlog, "may_hold_back", False)
    with pytest.raises(Violation, match=r"replicas left the ISR|requests failed under load"):
        executed(LoadRun(1, SLOW_FOLLOWER, drain_s=LONGER_THAN_THE_LAG_S))


def test_the_same_seed_is_the_same_run() -> None:
    digests = set()
    for _ in range(2):
        run = LoadRun(1, SLOW_FOLLOWER)
        run.world.trace.start()
        run.execute()
        digests.add(run.world.trace.digest)
    assert len(digests) == 1

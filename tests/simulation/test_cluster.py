"""Seeds of `ClusterRun`: no fault of a cluster loses data that is promised to be kept.

To repeat one seed: `python -m tests.simulation.test_cluster SEED`, which prints its plan and its digest. To count the
injected faults of many seeds: `python -m tests.simulation.test_cluster FIRST LAST`.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from time import perf_counter

import pytest

from ottla.protocol.model.durability import Durability
from ottla.sim.disk_fault_plan import DiskFaultKind
from ottla.sim.fault_plan import FaultKind
from tests.simulation.cluster_plan import ACTIONS, STORE_TROUBLES, ClusterPlan, RunOptions
from tests.simulation.cluster_run import ClusterRun, Violation
from tests.simulation.test_networked_broker import Rate, rate

__all__ = ["rate"]

ROOT = Path(__file__).resolve().parents[2]
SEEDS = max(int(os.environ.get("OTTLA_SIM_SEEDS", "300")) // 15, 10)
PINNED = (13, 49, 66, 78, 82, 246, 308, 332, 379, 414, 713, 731, 91052, 92290, 120351)
"""Each found a bug: a leader with damage where no startup reads; memory topics that were given up with a lease; a
consumer that met damage and was never told to retry; a truncation that a full disk ended for good; a replica that was
moved away and failed pending produces as not written; a `memory` log that continued in a replica without its end and
reused offsets; a batch that did not read back at startup, so that its producer's retry was appended again; a client
that took an old reply about other topics as proof that its topic was deleted; a rejected ISR change that cancelled the
next one, which was in flight; a check that did not consider a follower that was away while a `cache` topic lost its end
in a power cut; a producer that sent a sixth batch to the new leader while five were unanswered by the old one; a check
that considered a `memory` log kept because the replica elected in its place, without data, had not started to lead when
it was elected again."""


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed-{seed}") for seed in sorted({*range(SEEDS), *PINNED})])
def test_nothing_that_was_acknowledged_is_lost(seed: int, rate: Rate) -> None:
    run = ClusterRun(seed)
    begin_s = perf_counter()
    run.execute()
    rate.real_s += perf_counter() - begin_s
    rate.virtual_s += run.world.now_s
    rate.seeds += 1
    rate.records += len(run.history.acknowledged)
    run.check()


@pytest.mark.parametrize("seed", [0, 24])
def test_another_process_with_other_hashes_has_the_same_run(seed: int) -> None:
    """Nothing may depend on the order of a set, on memory addresses or on the time of garbage collection."""
    outputs = [
        subprocess.run(
            [sys.executable, "-m", "tests.simulation.test_cluster", str(seed)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert outputs[0].splitlines()[-1].startswith("digest ")
    assert outputs[0] == outputs[1]


def test_everything_is_drawn() -> None:
    """Checks that every kind of fault occurs in some plan."""
    plans = [ClusterPlan.drawn(seed, RunOptions()) for seed in range(200)]
    drawn = Counter(fault.kind for plan in plans for fault in plan.faults.faults)
    assert min(drawn[kind] for kind in FaultKind) >= 20
    on_disks = Counter(fault.kind for plan in plans for fault in plan.disk_faults.faults)
    assert min(on_disks[kind] for kind in DiskFaultKind) >= 20
    of_store = Counter(trouble.kind for plan in plans for trouble in plan.store_troubles)
    assert min(of_store[kind] for kind in STORE_TROUBLES) >= 10
    actions = Counter(action for plan in plans for _, action in plan.actions)
    assert min(actions[action] for action in ACTIONS) >= 20
    classes = Counter(topic.durability for plan in plans for topic in plan.topics)
    assert min(classes[durability] for durability in Durability) >= 40
    acks = Counter(acks for plan in plans for acks in plan.acks.values())
    assert min(acks[level] for level in ("all", 1, 0)) >= 40


def _show(seed: int) -> None:
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    run = ClusterRun(seed)
    print(run.plan)
    run.world.trace.start()
    run.execute()
    run.check()
    print(f"{len(run.history.acknowledged)} acknowledged, {run.world.now_s:.1f} virtual seconds")
    print(f"digest {run.world.trace.digest}")


def _show_counts(seeds: range) -> None:
    logging.disable(logging.CRITICAL)
    counts: Counter[str] = Counter()
    for seed in seeds:
        run = ClusterRun(seed)
        try:
            run.execute()
            run.check()
        except Violation as violation:
            print(f"seed {seed}: {str(violation).splitlines()[0]}", flush=True)
        counts += run.fault_counts
        counts.update({f"operator: {action}": count for action, count in run.operator.done.items()})
        counts["allowed losses"] += len(run.checks.losses)
        counts["leader changes"] += run.leader_changes
    for what, count in sorted(counts.items()):
        print(f"{count:7d} {what}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _show_counts(range(int(sys.argv[1]), int(sys.argv[2]) + 1))
    else:
        _show(int(sys.argv[1]))

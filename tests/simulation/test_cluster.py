"""Seeds of `ClusterRun`: whatever happens to three brokers, nothing that was acknowledged is lost.

One seed again: `python -m tests.simulation.test_cluster SEED`.
"""

from __future__ import annotations

import logging
import os
import sys
from time import perf_counter

import pytest

from tests.simulation.cluster_run import ClusterRun
from tests.simulation.test_networked_broker import Rate, rate

__all__ = ["rate"]

SEEDS = max(int(os.environ.get("OTTLA_SIM_SEEDS", "300")) // 15, 10)
PINNED = (23, 30, 34, 147, 159)
"""The first sees a leader that acknowledges before its followers have it. Each of the others found a bug: topics denied
by a broker that had just started, a consumer that forgot a leaderless partition, an epoch that was led without a
record, a fetcher that went on as the incarnation before."""


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


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    one = ClusterRun(int(sys.argv[1]))
    print(one.plan)
    one.execute()
    one.check()
    print(f"{len(one.history.acknowledged)} acknowledged, {one.world.now_s:.1f} virtual seconds")
    print(one.world.trace.digest)

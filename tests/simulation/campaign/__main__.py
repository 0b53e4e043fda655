"""Runs seeds of the cluster simulation, or replays one with its faults and the brokers' logs. `--groups` adds consumer
groups to the cluster, `--transactions` transactional producers, and `--load` producers that offer more than the cluster
can handle.

`python -m tests.simulation.campaign --seeds 1000 --from 0 --workers 2`
`python -m tests.simulation.campaign --replay 17`
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from functools import partial

from tests.simulation import test_cluster, test_groups, test_load, test_transactions
from tests.simulation.campaign.display import Display, Tally
from tests.simulation.campaign.outcomes import Kind, failure_of, run_seed
from tests.simulation.campaign.workers import run_all

PINNED = {
    Kind.CLUSTER: test_cluster.PINNED,
    Kind.GROUPS: test_groups.PINNED,
    Kind.TRANSACTIONS: test_transactions.PINNED,
    Kind.LOAD: test_load.PINNED,
}
HUNG_AFTER_S = 300.0
BEAT_S = 1.0
INTERRUPTED = 130
"""The exit status that shells report for a process ended by Ctrl-C."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation.campaign", description="many seeds of the simulation")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes; one a core by default")
    parser.add_argument("--hung-after", type=float, default=HUNG_AFTER_S, help="seconds until a seed counts as hung")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--groups", action="store_true", help="with groups of consumers")
    which.add_argument("--transactions", action="store_true", help="with transactional producers")
    which.add_argument("--load", action="store_true", help="with more load than the cluster can take")
    parser.add_argument("--replay", type=int, help="one seed only, with the brokers' log")
    options = parser.parse_args()
    chosen = {Kind.GROUPS: options.groups, Kind.TRANSACTIONS: options.transactions, Kind.LOAD: options.load}
    kind = next((kind for kind, is_chosen in chosen.items() if is_chosen), Kind.CLUSTER)
    if options.replay is not None:
        return replay(options.replay, kind)
    pinned = PINNED[kind]
    seeds = [*pinned, *(seed for seed in range(options.first, options.first + options.seeds) if seed not in pinned)]
    return campaign(seeds, max(options.workers, 1), options.hung_after, kind)


def campaign(seeds: list[int], worker_count: int, hung_after_s: float, kind: Kind) -> int:
    tally = Tally(len(seeds), kind)
    run = partial(run_seed, kind=kind)
    display = Display(tally)
    interrupted = False
    for stopping in (signal.SIGINT, signal.SIGTERM):  # background jobs ignore Ctrl-C unless a handler is set
        signal.signal(stopping, signal.default_int_handler)
    try:
        for outcome in run_all(seeds, worker_count, hung_after_s=hung_after_s, beat_s=BEAT_S, run=run):
            if outcome is not None:
                tally.add(outcome)
                if outcome.failed is not None:
                    display.failure(outcome.seed, outcome.failed)
            display.progress()
    except KeyboardInterrupt:
        interrupted = True
    display.summary()
    if tally.failures:
        return 1
    return INTERRUPTED if interrupted else 0


def replay(seed: int, kind: Kind) -> int:
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s", stream=sys.stdout)
    run = kind.new_run(seed)
    print(run.plan)
    try:
        run.execute()
        run.check()
    except Exception as error:
        failed = failure_of(error)
        print(failed.details)
        print(f"seed {seed}, after {run.world.now_s:.3f} virtual seconds: {failed.checker}: {failed.text}")
        return 1
    print(f"seed {seed}: {run.acknowledged} {kind.value} acknowledged, {run.world.now_s:.1f} virtual seconds, no fault")
    return 0


if __name__ == "__main__":
    sys.exit(main())

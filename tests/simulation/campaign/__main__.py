"""Runs seeds of one kind of simulation or of all, or one seed again: then with its faults and the brokers' own logs.

`python -m tests.simulation.campaign --seeds 1000 --from 0 --jobs 2`
`python -m tests.simulation.campaign --kind long --seeds 200`
`python -m tests.simulation.campaign --kind all --seeds 100 --reach-within 100`
`python -m tests.simulation.campaign --kind long --replay 17`
`python -m tests.simulation.campaign --list-reach`

At the end it prints which rare branches of the brokers were reached (`ottla.reach`). With `--reach-within N`, a branch
that none of the kinds reached counts as a failure, once each of them has run N seeds.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections import Counter
from functools import partial

from ottla import reach
from tests.simulation import test_cluster, test_groups, test_load, test_long, test_transactions
from tests.simulation.campaign.display import Display, Tally, reach_lines
from tests.simulation.campaign.outcomes import Kind, failure_of, run_seed
from tests.simulation.campaign.workers import run_all
from tests.simulation.state_faults import SEEDS_FROM

PINNED = {
    Kind.CLUSTER: test_cluster.PINNED,
    Kind.LONG: test_long.PINNED,
    Kind.GROUPS: test_groups.PINNED,
    Kind.TRANSACTIONS: test_transactions.PINNED,
    Kind.LOAD: test_load.PINNED,
}
ALL = "all"
HUNG_AFTER_S = 300.0
BEAT_S = 1.0
INTERRUPTED = 130
"""The exit status that shells report for a process ended by Ctrl-C."""


def main() -> int:
    options = parse_options()
    if options.list_reach:
        for each in sorted(reach.BRANCHES.values(), key=lambda found: (found.module, found.name)):
            print(f"{each.module:<50}  {each.name}")
        return 0
    kinds = chosen_kinds(options)
    if options.replay is not None:
        return replay(options.replay, kinds[0])
    tallies: list[Tally] = []
    for kind in kinds:
        seeds = seeds_of(kind, options.first, options.seeds)
        tally, is_interrupted = campaign(seeds, max(options.jobs, 1), options.hung_after, kind)
        tallies.append(tally)
        if is_interrupted:
            return 1 if tally.failures else INTERRUPTED
    unreached = unreached_branches(tallies)
    if options.reach_within is not None and min(tally.done for tally in tallies) >= options.reach_within and unreached:
        print(f"never reached: {', '.join(unreached)}")
        return 1
    return 1 if any(tally.failures for tally in tallies) else 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.simulation.campaign", description="many seeds of the simulation")
    parser.add_argument("--kind", choices=[*(kind.value for kind in Kind), ALL], help="which simulation")
    parser.add_argument("--seeds", type=int, default=100, help="how many, of each kind")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them")
    parser.add_argument(
        *("--jobs", "--workers"), type=int, default=os.cpu_count() or 1, help="processes; one per core by default"
    )
    parser.add_argument("--hung-after", type=float, default=HUNG_AFTER_S, help="seconds until a seed counts as hung")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--groups", action="store_true", help="same as --kind groups")
    which.add_argument("--transactions", action="store_true", help="same as --kind transactions")
    which.add_argument("--load", action="store_true", help="same as --kind load")
    parser.add_argument("--replay", type=int, help="one seed only, with the brokers' log")
    parser.add_argument("--list-reach", action="store_true", help="list the branches that are counted, and end")
    parser.add_argument("--reach-within", type=int, help="fail if a branch was not reached within so many seeds")
    return parser.parse_args()


def chosen_kinds(options: argparse.Namespace) -> list[Kind]:
    if options.kind == ALL:
        return list(Kind)
    if options.kind is not None:
        return [Kind(options.kind)]
    chosen = {Kind.GROUPS: options.groups, Kind.TRANSACTIONS: options.transactions, Kind.LOAD: options.load}
    return [next((kind for kind, is_chosen in chosen.items() if is_chosen), Kind.CLUSTER)]


def seeds_of(kind: Kind, first: int, count: int) -> list[int]:
    """Returns the pinned seeds and then `count` others. Every other one of them has faults that states trigger."""
    pinned = PINNED.get(kind, ())
    seeds = list(range(first, first + count))
    if kind.has_state_faults and first + count <= SEEDS_FROM:
        seeds = [first + number // 2 + number % 2 * SEEDS_FROM for number in range(count)]
    return [*pinned, *(seed for seed in seeds if seed not in pinned)]


def unreached_branches(tallies: list[Tally]) -> list[str]:
    reached: Counter[str] = sum((tally.reached for tally in tallies), Counter())
    return sorted(name for name in reach.BRANCHES if not reached[name])


def campaign(seeds: list[int], worker_count: int, hung_after_s: float, kind: Kind) -> tuple[Tally, bool]:
    """Runs the seeds. Returns what came of them, and whether somebody ended it early."""
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
    print("\n".join(reach_lines(tally)), flush=True)
    return tally, interrupted


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
    print(f"seed {seed}: {run.acknowledged} {kind.noun} acknowledged, {run.world.now_s:.1f} virtual seconds, no fault")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs seeds of one or more kinds of simulation, or one seed again: then with its faults and the brokers' own logs.

`python -m tests.simulation.campaign --seeds 1000 --from 0 --jobs 2`
`python -m tests.simulation.campaign --kind long --seeds 200`
`python -m tests.simulation.campaign --kind all --seeds 100 --reach-within 100`
`python -m tests.simulation.campaign --kind long --kind wal --from 300000 --new --minutes 10 --log seeds.jsonl`
`python -m tests.simulation.campaign --kind long --replay 17`
`python -m tests.simulation.campaign --list-reach`

The kinds take turns. At the end one table says which rare branches of the brokers were reached, and by which kinds
(`ottla.reach`). With `--reach-within N`, a branch that none of the kinds reached within its first N seeds is a failure.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from time import monotonic

from ottla import reach
from tests.simulation import test_cluster, test_groups, test_harsh_logs, test_load, test_long, test_transactions
from tests.simulation.campaign.display import Display, Tallies, log_line
from tests.simulation.campaign.outcomes import Job, Kind, failure_of
from tests.simulation.campaign.workers import run_all
from tests.simulation.state_faults import SEEDS_FROM
from tests.support.compiled_kernel import demand_fresh_kernel

PINNED = {
    Kind.CLUSTER: test_cluster.PINNED,
    Kind.LONG: test_long.PINNED,
    Kind.GROUPS: test_groups.PINNED,
    Kind.TRANSACTIONS: test_transactions.PINNED,
    Kind.LOG: test_harsh_logs.PINNED,
    Kind.LOAD: test_load.PINNED,
}
ALL = "all"
HUNG_AFTER_S = 300.0
BEAT_S = 1.0
SEEDS = 100
SEEDS_MAX = 100_000
INTERRUPTED = 130
"""The exit status that shells report for a process ended by Ctrl-C."""


def main() -> int:
    options = parse_options()
    demand_fresh_kernel()
    if options.list_reach:
        for each in sorted(reach.BRANCHES.values(), key=lambda found: (found.module, found.name)):
            print(f"{each.module:<50}  {each.name}")
        return 0
    kinds = chosen_kinds(options)
    if options.replay is not None:
        return replay(options.replay, kinds[0])
    seeds = {kind: seeds_of(kind, options.first, options.seeds, with_pinned=not options.new) for kind in kinds}
    tallies = Tallies({kind: len(found) for kind, found in seeds.items()})
    is_interrupted = campaign(seeds, tallies, options)
    failed = tallies.failure_count > 0 or is_short_of_reach(tallies, options.reach_within)
    return 1 if failed else INTERRUPTED if is_interrupted else 0


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.simulation.campaign", description="many seeds of the simulation")
    parser.add_argument(
        "--kind",
        choices=[*(kind.value for kind in Kind), ALL],
        action="append",
        help="which simulation; may be repeated",
    )
    parser.add_argument("--seeds", type=int, help="how many, of each kind; 100 by default, no limit with --minutes")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them")
    parser.add_argument("--new", action="store_true", help="without the pinned seeds")
    parser.add_argument("--minutes", type=float, help="end after this time, when the seeds that run are done")
    parser.add_argument(
        *("--jobs", "--workers"), type=int, default=os.cpu_count() or 1, help="processes; one per core by default"
    )
    parser.add_argument("--hung-after", type=float, default=HUNG_AFTER_S, help="seconds until a seed counts as hung")
    parser.add_argument("--log", type=Path, help="append a line of JSON for each seed to this file")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--groups", action="store_true", help="same as --kind groups")
    which.add_argument("--transactions", action="store_true", help="same as --kind transactions")
    which.add_argument("--load", action="store_true", help="same as --kind load")
    parser.add_argument("--replay", type=int, help="one seed only, with the brokers' log")
    parser.add_argument("--list-reach", action="store_true", help="list the branches that are counted, and end")
    parser.add_argument("--reach-within", type=int, help="fail if a branch was not reached within so many seeds")
    options = parser.parse_args(arguments)
    if options.seeds is None:
        options.seeds = SEEDS if options.minutes is None else SEEDS_MAX
    return options


def chosen_kinds(options: argparse.Namespace) -> list[Kind]:
    named = options.kind or []
    if ALL in named:
        return list(Kind)
    if named:
        return [kind for kind in Kind if kind.value in named]
    chosen = {Kind.GROUPS: options.groups, Kind.TRANSACTIONS: options.transactions, Kind.LOAD: options.load}
    return [next((kind for kind, is_chosen in chosen.items() if is_chosen), Kind.CLUSTER)]


def seeds_of(kind: Kind, first: int, count: int, *, with_pinned: bool = True) -> list[int]:
    """Returns the pinned seeds and then `count` others. Every other one of them is from `SEEDS_FROM` on, with all the
    faults that states trigger."""
    pinned = PINNED.get(kind, ()) if with_pinned else ()
    seeds = list(range(first, first + count))
    if kind.has_later_seeds and first + count <= SEEDS_FROM:
        seeds = [first + number // 2 + number % 2 * SEEDS_FROM for number in range(count)]
    return [*pinned, *(seed for seed in seeds if seed not in pinned)]


def jobs_of(seeds: dict[Kind, list[int]], minutes: float | None) -> Iterator[Job]:
    """Yields the seeds of all kinds in turns, until the time is up."""
    end_s = float("inf") if minutes is None else monotonic() + minutes * 60
    rounds = zip_longest(*([Job(seed, kind) for seed in found] for kind, found in seeds.items()))
    for job in chain.from_iterable(rounds):
        if monotonic() >= end_s:
            return
        if job is not None:
            yield job


def is_short_of_reach(tallies: Tallies, within: int | None) -> bool:
    """Reports the branches that were not reached in time."""
    unreached = tallies.unreached(within) if within is not None else None
    if within is not None and unreached is None:
        print(f"not every kind has run {within} seeds, so branches that were not reached do not count as failures")
    if unreached:
        print(f"not reached within {within} seeds of each kind: {', '.join(unreached)}")
    return bool(unreached)


def campaign(seeds: dict[Kind, list[int]], tallies: Tallies, options: argparse.Namespace) -> bool:
    """Runs the seeds. Returns whether somebody ended it early."""
    display = Display(tallies)
    interrupted = False
    for stopping in (signal.SIGINT, signal.SIGTERM):  # background jobs ignore Ctrl-C unless a handler is set
        signal.signal(stopping, signal.default_int_handler)
    jobs = jobs_of(seeds, options.minutes)
    try:
        for outcome in run_all(jobs, max(options.jobs, 1), hung_after_s=options.hung_after, beat_s=BEAT_S):
            if outcome is not None:
                tallies.add(outcome)
                if options.log is not None:
                    with options.log.open("a") as log:
                        log.write(log_line(outcome) + "\n")
                if outcome.failed is not None:
                    display.failure(outcome)
            display.progress()
    except KeyboardInterrupt:
        interrupted = True
    display.summary()
    return interrupted


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

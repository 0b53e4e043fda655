"""Before and after: the same load on brokers of two or more source trees in turn, beside the floor.

    git worktree add ../before HEAD~1 && (cd ../before && make setup)
    python benchmarks/two_trees.py ../before/src src --case '128 KB batches' --classes cache
    python benchmarks/two_trees.py ../before/src src --case '64 in flight' --repetitions 10

One broker of each tree runs all the time. Each repetition measures the floor and then each tree, in alternating order,
so that other work on the machine affects all of them. The extensions of each tree must be built. The table shows
medians: requests/s, CPU us per request (and the lowest), and the share of the floor's rate in the same repetition (and
its range).
"""

from __future__ import annotations

import argparse
import os
import re
from collections import defaultdict
from pathlib import Path
from statistics import median

from ottla.bench.frames import prepare_batch
from ottla.bench.pipeline import LoadResult
from ottla.bench.produce import CASES, TOPIC_CONFIGS, ProduceCase, run_on_broker, run_on_floor
from ottla.bench.quotients import per
from ottla.bench.targets import OneBroker
from ottla.bench.workbench import CLASSES, Pace, Workbench
from ottla.testing.broker_process import BrokerProcess

Found = dict[tuple[str, str], list[tuple[LoadResult, float]]]
"""Measurements with their shares of the floor, by subject and tree."""


def start(bench: Workbench, tree: Path) -> OneBroker:
    if not any((tree / "ottla").glob("**/records/_produce_run.*.so")):
        raise SystemExit(f"{tree} has no compiled extensions: run `make setup` in its checkout first")
    os.environ["PYTHONPATH"] = str(tree)
    broker: BrokerProcess = bench.new_broker()
    return OneBroker(lambda: broker)


def compare(bench: Workbench, case: ProduceCase, trees: list[Path], classes: list[str], repetitions: int) -> Found:
    batch = prepare_batch(case.record_bytes, case.batch_bytes_max, bench.timestamp_ms)
    brokers = {tree: start(bench, tree) for tree in trees}
    for broker in brokers.values():
        for durability in classes:
            broker.create([f"t-{durability}"], {**TOPIC_CONFIGS, "ottla.durability": durability})
    found: Found = defaultdict(list)
    for repetition in range(repetitions):
        floor = run_on_floor(bench, case, batch, bench.pace)
        found["floor", ""].append((floor, 1.0))
        for durability in classes:
            for tree in trees if repetition % 2 else reversed(trees):
                run = run_on_broker(bench, case, batch, f"t-{durability}", brokers[tree], bench.pace)
                found[durability, str(tree)].append((run, per(run.requests_per_s, floor.requests_per_s)))
    return found


def show(case: ProduceCase, found: Found) -> None:
    print(f"{case.name}\n{'':<8} {'requests/s':>11} {'CPU us':>8} {'lowest':>8}   of floor")
    for (subject, tree), runs in sorted(found.items()):
        cpu_us = [per(run.server_cpu_s, run.requests) * 1e6 for run, _ in runs]
        shares = [share for _, share in runs]
        print(
            f"{subject:<8} {median(run.requests_per_s for run, _ in runs):>11,.0f} {median(cpu_us):>8.2f}"
            f" {min(cpu_us):>8.2f}   {median(shares):.3f} ({min(shares):.2f} - {max(shares):.2f})  {tree}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measures brokers of several source trees in turn under the same load."
    )
    parser.add_argument("trees", nargs="+", type=Path, help="the `src` directory of each checkout")
    parser.add_argument("--case", default="128 KB batches", help="a regular expression for the names of cases")
    parser.add_argument("--classes", nargs="+", default=list(CLASSES), choices=CLASSES)
    parser.add_argument("--repetitions", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.7)
    parser.add_argument("--data", type=Path, default=Path("bench-results"), help="a directory on the disk to measure")
    options = parser.parse_args()
    trees = [tree.resolve() for tree in options.trees]
    for case in [case for case in CASES if re.search(options.case, case.name)]:
        with Workbench(options.data, Pace(0.4, options.seconds, 1), lambda _seconds, _what: None) as bench:
            _ = bench.floor, bench.driver  # start them before PYTHONPATH changes
            show(case, compare(bench, case, trees, options.classes, options.repetitions))


if __name__ == "__main__":
    main()

"""How fast the simulation runs: seeds and virtual hours per minute of one core, for each kind of seed.

    python -m benchmarks.simulation_speed [--seconds 10] [--kind clusters] [--json FILE] [--before FILE]

Each kind runs seeds from 0 on, one after another as a campaign's worker does, until its time is used up; every other
seed of the kinds that have them is one with faults that states trigger. Rates are per minute of CPU time, so that other
work on the machine has little effect. `--before` adds the columns of an earlier `--json` file: the seeds of that file
are run again, so that both have done the same work.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from time import process_time
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from tests.simulation.campaign.outcomes import Job, Kind, run_seed
from tests.simulation.state_faults import SEEDS_FROM

from ottla.bench.quotients import rate, ratio, times_text


class Speed(NamedTuple):
    """The time that the seeds of one kind took."""

    kind: str
    seeds: int
    virtual_s: float
    cpu_s: float

    @property
    def seeds_a_minute(self) -> float:
        return rate(self.seeds, self.cpu_s / 60)

    @property
    def hours_a_minute(self) -> float:
        return rate(self.virtual_s / 3600, self.cpu_s / 60)


def seeds_of(kind: Kind) -> Iterator[int]:
    for number in count():
        yield number // 2 + number % 2 * SEEDS_FROM if kind.has_state_faults else number


def measured(kind: Kind, seeds: Iterable[int], seconds: float) -> Speed:
    run_seed(Job(10_000, kind))  # fills the caches, outside of the time that is measured
    gc.collect()
    gc.freeze()  # as a worker does
    done, virtual_s = 0, 0.0
    begin_s = process_time()
    for seed in seeds:
        outcome = run_seed(Job(seed, kind))
        if outcome.failed is not None:
            raise SystemExit(f"{kind.value} {seed} failed: {outcome.failed.checker}: {outcome.failed.text}")
        gc.collect()
        done += 1
        virtual_s += outcome.virtual_s
        if process_time() - begin_s >= seconds:
            break
    return Speed(kind.value, done, virtual_s, process_time() - begin_s)


def table_of(speeds: list[Speed], before: dict[str, Speed]) -> Table:
    table = Table("kind", "seeds", "virtual time")
    for column in ("seeds/min", "virtual hours/min"):
        for name in (f"{column} before", column) if before else (column,):
            table.add_column(name, justify="right")
    if before:
        table.add_column("ratio", justify="right")
    for each in speeds:
        old = before.get(each.kind)
        cells = [f"{each.seeds_a_minute:.1f}", f"{each.hours_a_minute:.3f}"]
        if old is not None:
            times = times_text(ratio(each.seeds_a_minute, old.seeds_a_minute))
            cells = [f"{old.seeds_a_minute:.1f}", cells[0], f"{old.hours_a_minute:.3f}", cells[1], times]
        table.add_row(each.kind, str(each.seeds), f"{each.virtual_s:.0f} s", *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.simulation_speed", description="seeds per minute of one core")
    parser.add_argument("--seconds", type=float, default=10.0, help="of CPU time for each kind")
    parser.add_argument("--kind", choices=[kind.value for kind in Kind], action="append", help="all by default")
    parser.add_argument("--json", type=Path, help="write the figures to this file, one JSON line per kind")
    parser.add_argument("--before", type=Path, help="compare with the figures of this file, for the same seeds")
    options = parser.parse_args()
    logging.disable()
    before: dict[str, Speed] = {}
    if options.before is not None:
        lines = options.before.read_text().splitlines()
        before = {speed.kind: speed for speed in (Speed(**json.loads(line)) for line in lines)}
    speeds: list[Speed] = []
    for kind in [Kind(name) for name in options.kind] if options.kind else list(Kind):
        seeds = seeds_of(kind)
        if kind.value in before:
            first = [next(seeds) for _ in range(before[kind.value].seeds)]
            speeds.append(measured(kind, first, float("inf")))
        else:
            speeds.append(measured(kind, seeds, options.seconds))
    Console().print(table_of(speeds, before))
    if options.json is not None:
        options.json.write_text("".join(json.dumps(each._asdict()) + "\n" for each in speeds))


if __name__ == "__main__":
    main()

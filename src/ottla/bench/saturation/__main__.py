"""Offers a cluster more load than it can take, and measures its goodput and the waits of other clients.

    python -m ottla.bench.saturation [--quick] [--only PATTERN] [--seconds S] [--durability disk|cache|memory] [--list]

Three brokers, RF 3, acks=all. For each record size, number of partitions and kind of producer, the peak is measured
first; then 0.5, 1, 1.5, 2 and 3 times the peak is offered. docs/reference/benchmarks.md explains how to read the table.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from ottla.bench.results import Row, append_rows, this_run
from ottla.bench.saturation.experiment import Generators, Terms, measure_configuration
from ottla.bench.saturation.plan import Configuration, chosen, configurations
from ottla.bench.saturation.summary import SaturationResult, checks_of, rows_of
from ottla.bench.saturation.tables import print_checks, table_of
from ottla.bench.tables import print_failures

SECONDS = 5.0
QUICK_SECONDS = 1.5


def main() -> int:
    """Runs the chosen configurations, prints tables and checks, and stores the rows. Returns 1 if some failed."""
    options = parse_options()
    console = Console(width=None if sys.stdout.isatty() else 220)
    try:
        plan = chosen(configurations(options.quick), options.only)
    except ValueError as problem:
        console.print(f"[red]{problem}[/red]", highlight=False)
        return 2
    terms = Terms(options.seconds, options.durability, options.producers, options.queue_mb << 20, options.wait)
    if options.list:
        print_plan(console, plan, terms)
        return 0
    run = this_run(" ".join(sys.argv[1:]))
    begin = time.perf_counter()
    rows, failures = measure_all(console, plan, terms, options.data or options.results)
    print_failures(console, failures)
    console.print(table_of(rows, terms.durability))
    print_checks(console, checks_of(rows))
    path = append_rows(options.results, run, rows)
    console.print(f"{time.perf_counter() - begin:.0f} s; load average before: {run.load_before}; {path}")
    return 1 if failures else 0


def measure_all(
    console: Console, plan: list[Configuration], terms: Terms, directory: Path
) -> tuple[list[Row], list[str]]:
    """Prints rows as they are measured. A configuration that fails is skipped and reported."""
    rows: list[Row] = []
    failures: list[str] = []
    directory.mkdir(parents=True, exist_ok=True)
    generators = Generators(terms.producers)

    def on_row(row: SaturationResult) -> None:
        console.print(
            f"{row.configuration.name}, {row.load.name}: {row.records_per_s:,.0f} records/s, "
            f"probe max {row.probed.requests.latencies.largest_us / 1000:.0f} ms",
            highlight=False,
        )

    try:
        for configuration in plan:
            with tempfile.TemporaryDirectory(dir=directory, prefix="data-", ignore_cleanup_errors=True) as scratch:
                try:
                    measured = measure_configuration(configuration, terms, generators, Path(scratch), on_row)
                except Exception as failure:
                    failures.append(f"{configuration.name}: {failure}")
                    continue
            rows += rows_of(measured, terms.durability)
    finally:
        generators.close()
    return rows, failures


def print_plan(console: Console, plan: list[Configuration], terms: Terms) -> None:
    """Prints the configurations, their loads and estimated durations."""
    for each in plan:
        loads = ", ".join(load.name for load in each.loads)
        console.print(f"{each.estimate_s(terms.seconds):6.0f} s  {each.name}: {loads}", highlight=False)
    console.print(f"{sum(each.estimate_s(terms.seconds) for each in plan):6.0f} s  in total", highlight=False)


def parse_options() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ottla.bench.saturation", description="Measures a cluster under overload."
    )
    parser.add_argument(
        "--quick", action="store_true", help="measure only the extreme configurations, briefly: rough figures"
    )
    parser.add_argument("--only", metavar="PATTERN", help="only the rows whose name matches this regular expression")
    parser.add_argument("--list", action="store_true", help="print the configurations and how long each takes")
    parser.add_argument(
        "--seconds", type=positive, help=f"seconds for each row (default: {SECONDS:g}; {QUICK_SECONDS:g} if quick)"
    )
    parser.add_argument(
        "--durability", choices=("disk", "cache", "memory"), default="disk", help="durability of the topics"
    )
    parser.add_argument("--producers", type=count, default=3, help="load generators, each a process (default: 3)")
    parser.add_argument("--queue-mb", type=count, default=64, help="bound of each producer's queue (default: 64)")
    parser.add_argument(
        "--wait", type=positive, default=60.0, help="seconds to wait for outstanding records (default: 60)"
    )
    parser.add_argument("--results", type=Path, default=Path("bench-results"), help="directory for the results")
    parser.add_argument("--data", type=Path, help="a directory on the disk to measure (default: that of the results)")
    options = parser.parse_args()
    if options.seconds is None:
        options.seconds = QUICK_SECONDS if options.quick else SECONDS
    return options


def positive(text: str) -> float:
    """Parses a finite number above zero, for argparse."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def count(text: str) -> int:
    """Parses a whole number of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted: nothing was recorded; all processes have ended")

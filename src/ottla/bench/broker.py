"""`make bench`: one broker, and three brokers with a replica on each, compared with the floor of this machine.

    python -m ottla.bench.broker [--quick] [--only PATTERN] [--list]

Prints tables, appends JSON lines to bench-results/broker.jsonl and writes bench-results/report.html. Goals are shown
beside the figures; nothing is asserted. docs/reference/benchmarks.md describes the method.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ottla.bench.plan import Step, chosen, steps_for
from ottla.bench.report import write_report
from ottla.bench.results import Row, append_rows, read_history, this_run
from ottla.bench.tables import print_failures, print_rows
from ottla.bench.workbench import FULL, QUICK, Workbench

RESULTS = Path("bench-results")


def main() -> int:
    """Runs the chosen steps, prints the tables and stores the rows. Returns the exit code."""
    options = parse_options()
    console = Console(width=None if sys.stdout.isatty() else 190)
    run = this_run(" ".join(sys.argv[1:]))
    rows: list[Row] = []
    failures: list[str] = []
    begin = time.perf_counter()
    with progress_bar(console) as progress:
        task = progress.add_task("starting", total=None)

        def advance(seconds: float, what: str) -> None:
            progress.update(task, advance=seconds, description=what or None)

        pace = QUICK if options.quick else FULL
        with Workbench(options.data or options.results, pace, advance) as bench:
            steps = chosen(steps_for(bench, quick=options.quick), options.only)
            if options.list:
                progress.stop()
                print_steps(console, steps)
                return 0
            progress.update(task, total=sum(step.estimate_s for step in steps))
            done_s = 0.0
            for step in steps:
                try:
                    rows += step.measure()
                except Exception as failure:
                    failures.append(f"{step.name}: {failure}")
                done_s += step.estimate_s
                progress.update(task, completed=done_s)
            progress.update(task, description="done")
    print_failures(console, failures)
    print_rows(console, rows)
    path = append_rows(options.results, run, rows)
    report = write_report(options.results / "report.html", run, rows, read_history(options.results), failures)
    console.print(f"{time.perf_counter() - begin:.0f} s; load average before: {run.load_before}; {path}, {report}")
    return 1 if failures else 0


def parse_options() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ottla.bench.broker", description="Measures one broker and three brokers against the floor."
    )
    parser.add_argument("--quick", action="store_true", help="shorten every step: two minutes, rough figures")
    parser.add_argument("--only", metavar="PATTERN", help="only the steps whose name matches this regular expression")
    parser.add_argument("--list", action="store_true", help="list the steps and how long each takes")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="directory for the results (default: bench-results)"
    )
    parser.add_argument("--data", type=Path, help="a directory on the disk to measure (default: that of the results)")
    return parser.parse_args()


def progress_bar(console: Console) -> Progress:
    """A progress bar that is rarely redrawn, because the machine is being measured."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(elapsed_when_finished=False),
        console=console,
        refresh_per_second=2,
        speed_estimate_period=60,
    )


def print_steps(console: Console, steps: list[Step]) -> None:
    """Prints the steps with their estimated durations."""
    for step in steps:
        console.print(f"{step.estimate_s:6.0f} s  {step.name}", highlight=False)
    console.print(f"{sum(step.estimate_s for step in steps):6.0f} s  in total", highlight=False)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted: nothing was recorded; all processes have ended")

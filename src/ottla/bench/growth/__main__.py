"""`python -m ottla.bench.growth`: what idle partitions and connections cost.

    python -m ottla.bench.growth [--quick] [--partitions 6,300,3000,10000] [--connections 2000,5000]

Three brokers hold partitions with three replicas. One topic of six partitions is in use, the others have one record in
each partition. docs/reference/benchmarks.md describes the columns.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ottla.bench.growth.measurements import Case, Pace, measure
from ottla.bench.results import Row, append_rows, this_run

FULL_PARTITIONS, QUICK_PARTITIONS = (6, 300, 3000, 10_000), (6, 300)
FULL_CONNECTIONS, QUICK_CONNECTIONS = (2000, 5000), (500,)
CONNECTIONS_AT_PARTITIONS = 6

Cell = tuple[str, Callable[[float], str], Callable[[float, float], bool] | None]
"""The heading, the format, and the goal: whether a figure is good enough beside that of the first row."""

COLUMNS: dict[str, Cell] = {
    "idle_core_share": ("idle, % of a core", lambda value: f"{value * 100:.1f}", lambda value, _: value < 0.05),
    "sync_p50_us": ("sync p50, ms", lambda value: f"{value / 1000:.2f}", None),
    "sync_p99_us": ("sync p99, ms", lambda value: f"{value / 1000:.2f}", lambda value, first: value <= 1.3 * first),
    "cpu_s_per_gb": ("CPU s/GB", lambda value: f"{value:.2f}", lambda value, first: value <= 1.3 * first),
    "stop_s": ("clean stop, s", lambda value: f"{value:.2f}", lambda value, _: value < 3),
    "restart_s": ("restart of all, s", lambda value: f"{value:.2f}", lambda value, _: value < 5),
    "leaders_moved_s": ("leaders moved, s", lambda value: f"{value:.2f}", lambda value, _: value < 1),
}


def table_of(rows: Sequence[Row]) -> Table:
    """Returns the table of the terminal: green figures meet their goals, yellow ones do not."""
    table = Table(
        title="growth: three brokers, RF 3, one topic of 6 partitions in use", title_justify="left", title_style="bold"
    )
    table.add_column("")
    for heading, _, _ in COLUMNS.values():
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(row.case, *[_cell(row, name, rows[0]) for name in COLUMNS])
    return table


def _cell(row: Row, name: str, first: Row) -> str:
    if name not in row.figures:
        return "failed" if row.notes and name not in ("stop_s", "restart_s", "leaders_moved_s") else ""
    _, text, goal = COLUMNS[name]
    value = row.figures[name]
    if goal is None or name not in first.figures:
        return text(value)
    style = "green" if goal(value, first.figures[name]) else "yellow"
    return f"[{style}]{text(value)}[/{style}]"


def cases_of(options: argparse.Namespace) -> list[Case]:
    """Returns the rows to measure: those of partitions, then those of connections."""
    partitions = options.partitions or (QUICK_PARTITIONS if options.quick else FULL_PARTITIONS)
    connections = options.connections
    if connections is None:
        connections = QUICK_CONNECTIONS if options.quick else FULL_CONNECTIONS
    faulty = not options.no_faults
    return [Case(count, with_faults=faulty) for count in partitions] + [
        Case(CONNECTIONS_AT_PARTITIONS, count, with_faults=False) for count in connections if count
    ]


def main() -> int:
    """Measures the rows, prints the table and stores the rows. Returns the exit code."""
    options = parse_options()
    console = Console(width=None if sys.stdout.isatty() else 150)
    run = this_run(" ".join(sys.argv[1:]))
    begin = time.perf_counter()
    options.results.mkdir(parents=True, exist_ok=True)
    pace = Pace(idle_s=3.0, load_s=2.0) if options.quick else Pace()
    rows: list[Row] = []
    for number, case in enumerate(cases_of(options)):
        with tempfile.TemporaryDirectory(dir=options.results, prefix="data-", ignore_cleanup_errors=True) as directory:
            rows.append(measure(case, Path(directory) / str(number), pace, console.print))
    console.print(table_of(rows))
    for row in rows:
        for what, failure in row.notes.items():
            console.print(f"{row.case}, {what}: {failure}", style="red", markup=False)
    path = append_rows(options.results, run, rows)
    console.print(f"{time.perf_counter() - begin:.0f} s; load average before: {run.load_before}; {path}")
    return 0


def parse_options() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ottla.bench.growth", description="Measures what idle partitions and connections cost."
    )
    parser.add_argument("--quick", action="store_true", help="few partitions and connections, short measurements")
    parser.add_argument("--partitions", type=_counts, help="numbers of partitions, separated by commas")
    parser.add_argument("--connections", type=_counts, help="numbers of idle connections; 0 leaves these rows out")
    parser.add_argument("--no-faults", action="store_true", help="kill, stop and restart no broker")
    parser.add_argument("--results", type=Path, default=Path("bench-results"), help="directory for the results")
    return parser.parse_args()


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(part) for part in text.split(","))
    if any(count < 0 for count in counts):
        raise argparse.ArgumentTypeError(f"{text!r} has a negative number")
    return counts


if __name__ == "__main__":
    sys.exit(main())

"""Prints the rows as tables in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ottla.bench.results import Goal, Row
from ottla.bench.throughput import FLOORS

Format = Callable[[float], str]


def _whole(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _milliseconds(value_us: float) -> str:
    return f"{value_us / 1000:.2f}"


COLUMNS: dict[str, tuple[str, Format]] = {
    "seconds": ("seconds", lambda value: f"{value:.3f}"),
    "mb": ("MB", lambda value: f"{value:.1f}"),
    "mb_per_s": ("MB/s", _whole),
    "left_mb": ("MB left", _whole),
    "cpu_s": ("CPU s", _short),
    "records_per_s": ("records/s", _whole),
    "requests_per_s": ("requests/s", _whole),
    "transactions_per_s": ("transactions/s", _whole),
    "share_of_plain": ("of plain", lambda value: f"{value:.3f}" if value < 0.1 else f"{value:.2f}"),
    "p50_us": ("p50 ms", _milliseconds),
    "p99_us": ("p99 ms", _milliseconds),
    "p999_us": ("p99.9 ms", _milliseconds),
    "cpu_s_per_gb": ("CPU s/GB", _short),
    "share_of_floor": ("of floor", _short),
    "cpu_to_floor": ("CPU x floor", lambda value: f"{value:.1f}"),
    "broker_busy": ("broker busy", lambda value: f"{value:.0%}"),
    "times_serial": ("x one sync", lambda value: f"{value:.0f}"),
}
"""The figures in a table, in this order; the others are in the JSON lines and in the report."""


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Returns the figures that any of the rows has, in the order of the columns."""
    return [name for name in COLUMNS if any(name in row.figures for row in rows)]


def cell(row: Row, name: str) -> str:
    """Returns a figure as the table shows it; empty if the row lacks it."""
    return COLUMNS[name][1](row.figures[name]) if name in row.figures else ""


def table_of(group: str, rows: Sequence[Row]) -> Table:
    """Returns the table of one group of rows."""
    names = columns_of(rows)
    table = Table(title=group, title_justify="left", title_style="bold")
    table.add_column("")
    if any(row.subject for row in rows):
        table.add_column("class")
    for name in names:
        table.add_column(COLUMNS[name][0], justify="right", no_wrap=True)
    if any(row.goal for row in rows):
        table.add_column("goal")
    previous = None
    for row in rows:
        if previous is not None and previous != row.case and row.subject:
            table.add_section()
        cells: list[str | Text] = [row.case if row.case != previous or not row.subject else ""]
        if any(other.subject for other in rows):
            cells.append(row.subject)
        cells += [cell(row, name) for name in names]
        if any(other.goal for other in rows):
            cells.append(goal_text(row.goal))
        table.add_row(*cells, style="dim" if row.subject in FLOORS else None)
        previous = row.case
    return table


def goal_text(goal: Goal | None) -> Text:
    """Returns the goal, green if it is met and yellow if not; empty without one."""
    if goal is None:
        return Text("")
    return Text(goal.text, style="green" if goal.met else "yellow")


def failed_heading(failures: Sequence[str]) -> str:
    """Returns the heading of the steps that could not be measured, with their number."""
    return f"{len(failures)} step{'' if len(failures) == 1 else 's'} could not be measured"


def print_failures(console: Console, failures: Sequence[str]) -> None:
    """Prints nothing if there are no failures."""
    if failures:
        console.print(failed_heading(failures), style="bold red")
    for failure in failures:
        console.print(f"  {failure}", style="red", markup=False, highlight=False, soft_wrap=True)


def print_rows(console: Console, rows: Sequence[Row]) -> None:
    """Prints one table for each group."""
    for group, found in groupby(sorted(rows, key=_group_order), key=lambda row: row.group):
        console.print(table_of(TITLES.get(group, group), list(found)))


TITLES = {
    "produce": "produce, one connection, acks=all (MB/s and records/s of values; latency of a closed loop)",
    "fetch": "fetch, one connection, at most 1 MB a request, 2 requests in flight",
    "three brokers, produce": (
        "three brokers, RF 3, min.insync.replicas=2: produce, one connection, acks=all (CPU of all three)"
    ),
    "three brokers, fetch": "three brokers, RF 3: fetch from the leader, 2 requests in flight (CPU of all three)",
    "librdkafka": "a real client: confluent-kafka (librdkafka), mostly bound by itself",
    "journal alone": "the journal alone, no sockets, no segments",
    "compaction": "compaction of one partition, and a producer beside it (1 KB, acks=all, 1 in flight)",
    "groups": "consumer groups: 200 of 5 members, each on a connection of its own, on one broker",
    "transactions": "transactions on one broker, 1 KB in 16 KB batches, a partition each (latency of whole ones)",
    "single": "starting, idling, a thousand topics",
}


def _group_order(row: Row) -> int:
    return list(TITLES).index(row.group) if row.group in TITLES else len(TITLES)

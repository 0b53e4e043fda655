"""Prints the rows of the saturation benchmark and its checks in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ottla.bench.results import Row
from ottla.bench.saturation.summary import GOODPUT_SHARE, PROBE_MAX_MS, Check

Format = Callable[[float], str]


def _whole(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


COLUMNS: dict[str, tuple[str, Format]] = {
    "offered_records_per_s": ("offered/s", _whole),
    "records_per_s": ("acked/s", _whole),
    "mb_per_s": ("MB/s", _whole),
    "share_of_peak": ("of peak", lambda value: f"{value:.0%}"),
    "shed": ("shed", _count),
    "failed": ("failed", _count),
    "duplicates": ("duplicates", _count),
    "isr_shrinks": ("ISR shrinks", _count),
    "broker_memory_mb": ("memory MB", _count),
    "probe_p50_ms": ("probe p50", lambda value: f"{value:.1f}"),
    "probe_p99_ms": ("p99", lambda value: f"{value:.1f}"),
    "probe_max_ms": ("max", lambda value: f"{value:.0f}"),
    "produce_p50_ms": ("produce p50", lambda value: f"{value:.1f}"),
    "produce_p99_ms": ("p99", lambda value: f"{value:.1f}"),
    "produce_max_ms": ("max", lambda value: f"{value:.0f}"),
}
BROKEN: dict[str, Callable[[Row], bool]] = {
    "share_of_peak": lambda row: row.figures["share_of_expected"] < GOODPUT_SHARE,
    "failed": lambda row: row.figures["failed"] > 0,
    "isr_shrinks": lambda row: row.figures["isr_shrinks"] > 0,
    "probe_max_ms": lambda row: row.figures["probe_max_ms"] > PROBE_MAX_MS,
    "produce_max_ms": lambda row: row.figures["produce_max_ms"] > PROBE_MAX_MS,
}


def table_of(rows: Sequence[Row], durability: str) -> Table:
    """Returns the table of the terminal: a section for each configuration."""
    title = f"saturation: three brokers, RF 3, acks=all, {durability} (probe and produce: ms that another client waits)"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("load", justify="right")
    for heading, _ in COLUMNS.values():
        table.add_column(heading, justify="right", no_wrap=True)
    previous = None
    for row in rows:
        configuration, _, load = row.case.rpartition(", ")
        if previous not in (None, configuration):
            table.add_section()
        table.add_row(configuration if configuration != previous else "", load, *(cell(row, name) for name in COLUMNS))
        previous = configuration
    return table


def cell(row: Row, name: str) -> Text:
    """Returns a figure as the table shows it: red if it breaks a rule, `?` if it is missing."""
    if name not in row.figures:
        return Text("?", style="red")
    is_broken = name in BROKEN and BROKEN[name](row)
    return Text(COLUMNS[name][1](row.figures[name]), style="red" if is_broken else "")


def print_checks(console: Console, checks: Sequence[Check]) -> None:
    """Prints which rules held at every load, with the worst value of each."""
    console.print("At any offered load:", style="bold")
    for check in checks:
        mark = "[green]kept   [/green]" if check.is_kept else "[red]broken [/red]"
        count = "" if check.is_kept else f" ({check.broken} of {check.rows} rows)"
        console.print(f"  {mark} {check.what}{count}; worst {check.worst}", highlight=False)

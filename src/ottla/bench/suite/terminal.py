"""Prints the results as tables in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ottla.bench.suite.failures import failures_of, heading_of
from ottla.bench.suite.figures import FIGURES, shown
from ottla.bench.suite.run_results import RatioResult, Results
from ottla.bench.suite.statistics import Summary

WRITING = ("records_per_s", "mb_per_s", "p50_us", "p99_us", "p999_us", "behind_share", "share_of_row",
           "brokers_cpu_s_per_gb", "broker_memory_mb")  # fmt: skip
READING = ("read_records_per_s", "read_mb_per_s", "end_to_end_p50_us", "end_to_end_p99_us", "end_to_end_p999_us",
           "read_brokers_cpu_s_per_gb")  # fmt: skip
"""All other figures are in the page and in the files."""
OFTEN_NOTHING = ("behind_share",)
LABEL_WIDTH_MAX = 52


def print_results(results: Results) -> None:
    """Prints failures first, then the tables of writing, reading, starts and ratios."""
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    name = results.matrix.get("name", "")
    if failures := failures_of(results):
        console.print(heading_of(failures), style="bold red")
        for failure in failures:
            console.print(f"  {failure.text}", style="red", markup=False, soft_wrap=True)
    for title, names in ((f"{name}: writing; medians, ± is half of the spread", WRITING), ("reading", READING)):
        if any(_says_something(results, each) for each in names):
            console.print(_figures(results, title, names))
    starts = _starts(results)
    if starts.row_count:
        console.print(starts)
    if results.peer and (results.ratios() or results.without_ratio()):
        console.print(_ratios(results))
    for each in results.matrix.get("left_out", []):
        console.print(f"skipped: {each['target']}: {each['label']}: {each['reason']}", markup=False)


def _figures(results: Results, title: str, all_names: Sequence[str]) -> Table:
    names = [name for name in all_names if _says_something(results, name)]
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("configuration", no_wrap=True, max_width=LABEL_WIDTH_MAX)
    table.add_column("target", no_wrap=True)
    for name in names:
        table.add_column(FIGURES[name].heading, justify="right")
    previous = ""
    for (key, target), cell in results.cells.items():
        has_failed = bool(cell.failures) and not cell.figures
        if not has_failed and not any(name in cell.figures for name in names):
            continue
        label = cell.label if key != previous else ""
        previous = key
        if has_failed:
            table.add_row(label, target, Text("failed", style="red"))
            continue
        table.add_row(label, target, *(summary_text(name, cell.summary(name)) for name in names))
    return table


def _says_something(results: Results, name: str) -> bool:
    values = [value for cell in results.cells.values() for value in cell.figures.get(name, {}).values()]
    return any(value > 0.001 for value in values) if name in OFTEN_NOTHING else bool(values)


def summary_text(name: str, found: Summary | None) -> str:
    """Returns the median as a table shows it, with half of the spread for record rates."""
    if found is None:
        return ""
    text = shown(name, found.median)
    return f"{text} ±{found.spread / 2:.0%}" if name == "records_per_s" and found.repetitions > 1 else text


def _starts(results: Results) -> Table:
    table = Table(title="starts", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("target", "times", "s to the first acknowledged write", "MB of a broker then"):
        table.add_column(heading)
    for target, figures in results.starts.items():
        columns = [figures.get(name, []) for name in ("start_s", "idle_memory_mb")]
        texts = [shown("start_s", sorted(values)[len(values) // 2]) if values else "" for values in columns]
        table.add_row(target, str(len(columns[0])), *texts)
    return table


def _ratios(results: Results) -> Table:
    title = f"{results.subject} / {results.peer}, of each repetition: median, lowest, highest"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("configuration", "figure", "ratio", "lowest", "highest", "goal"):
        table.add_column(heading, justify="right" if heading in ("ratio", "lowest", "highest") else "left")
    for each in results.ratios():
        numbers = [f"{value:.2f}" for value in each.ratio]
        table.add_row(each.label, FIGURES[each.figure].heading.replace(" ms", ""), *numbers, _goal(each))
    for label, targets in results.without_ratio():
        table.add_row(label, Text(f"{targets} failed", style="red"))
    return table


def _goal(found: RatioResult) -> Text:
    if found.goal is None:
        return Text("")
    met = found.goal.is_met(found.ratio.ratio)
    sign = ">=" if found.goal.at_least else "<="
    return Text(f"{sign} {found.goal.bound:g}: {'met' if met else 'missed'}", style="green" if met else "yellow")

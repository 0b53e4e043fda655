"""Writes the rows of a run as an HTML page: charts, tables, and the change of figures since earlier runs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from ottla.bench.charts import Bar, Range, bar_chart, line_chart, range_chart
from ottla.bench.results import Row, Run
from ottla.bench.tables import COLUMNS, TITLES, cell, columns_of, failed_heading
from ottla.bench.throughput import FLOORS

RUNS_SHOWN = 30
HISTORY = (
    ("MB/s, produce in 128 KB batches", "produce 1 KB, 128 KB batches", "mb_per_s"),
    ("requests/s, 1 KB, 64 in flight", "produce 1 KB, one a batch, 64 in flight", "requests_per_s"),
    ("CPU seconds per GB, produce in 128 KB batches", "produce 1 KB, 128 KB batches", "cpu_s_per_gb"),
    ("MB/s, three copies, 1 KB in 16 KB batches", "three brokers, produce 1 KB, 16 KB batches", "mb_per_s"),
    ("MB/s, fetch from the tail cache", "fetch 1 KB, 16 KB batches, tail cache", "mb_per_s"),
)

STYLE = """
:root { --text: #1b1f24; --quiet: #68707a; --line: #d9dde2; --page: #ffffff; --memory: #3b7dd8; --cache: #2e9e6b;
        --disk: #c2603f; --floor: #a9b0b8; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e7ea; --quiet: #98a1ab; --line: #363c43; --page: #16191d;
        --memory: #6fa8ee; --cache: #58c495; --disk: #e08a6b; --floor: #6b737c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 1160px;
       margin: 2rem auto; padding: 0 1rem; }
svg { width: 100%; max-width: 920px; display: block; margin: 1.2rem 0; }
svg text { font: 11px system-ui, sans-serif; fill: var(--text); }
svg .title { font-size: 13px; font-weight: 600; }
svg .quiet { fill: var(--quiet); }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg line, svg polyline { stroke-width: 2; fill: none; }
.memory { fill: var(--memory); stroke: var(--memory); } .cache { fill: var(--cache); stroke: var(--cache); }
.disk { fill: var(--disk); stroke: var(--disk); } .floor { fill: var(--floor); stroke: var(--floor); }
.producer { fill: var(--memory); stroke: var(--memory); } .producers { fill: var(--cache); stroke: var(--cache); }
.librdkafka { fill: var(--disk); stroke: var(--disk); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child, td.words { text-align: left; }
.met { color: var(--cache); } .missed { color: var(--disk); }
"""


def write_report(
    path: Path, run: Run, rows: Sequence[Row], history: Sequence[dict[str, Any]], failures: Sequence[str] = ()
) -> Path:
    """Writes the page. Failed steps come first, each on one line."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>Ottla against the floor</title><style>{STYLE}</style></head><body>",
        "<h1>Ottla against the floor</h1>",
        f"<p>{escape(_where(run))}</p>",
        _failed(failures),
        _goals(rows),
        *_plots(rows),
        *_history(history),
        *_tables(rows),
        "</body></html>",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _where(run: Run) -> str:
    return (
        f"{run.at}, commit {run.commit or 'unknown'}, {run.machine}, Linux {run.kernel}, Python {run.python}, "
        f"load average {run.load_before} before the run. {run.options}"
    )


def _failed(failures: Sequence[str]) -> str:
    if not failures:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in failures)
    return f'<h2 class="missed">{failed_heading(failures)}</h2><ul class="missed">{items}</ul>'


def _goals(rows: Sequence[Row]) -> str:
    items = [
        f'<li class="{"met" if row.goal.met else "missed"}">{escape(row.name)}: {escape(row.goal.text)}</li>'
        for row in rows
        if row.goal is not None
    ]
    return f"<ul>{''.join(items)}</ul>" if items else ""


def _plots(rows: Sequence[Row]) -> list[str]:
    plots = []
    for group in ("produce", "fetch", "three brokers, produce", "three brokers, fetch"):
        found = [row for row in rows if row.group == group]
        if not found:
            continue
        brokers = [row for row in found if row.subject not in FLOORS]
        plots.append(_bars(f"{group}: MB/s", found, "mb_per_s"))
        plots.append(_bars(f"{group}: share of the floor", brokers, "share_of_floor"))
        # One request at a time costs so much per GB that all other bars would vanish; the table has it.
        streams = [row for row in found if not row.case.endswith("1 in flight")]
        plots.append(_bars(f"{group}: CPU seconds per GB, of all brokers", streams, "cpu_s_per_gb"))
        ranges = [
            Range(row.case, row.subject, *(row.figures[name] / 1000 for name in ("p50_us", "p99_us", "p999_us")))
            for row in found
        ]
        plots.append(range_chart(f"{group}: p50, p99 and p99.9 of a request (closed loop)", ranges, "ms"))
    client = [row for row in rows if row.group == "librdkafka"]
    if client:
        plots.append(_bars("librdkafka: records/s", client, "records_per_s"))
    in_transactions = [row for row in rows if row.group == "transactions" and "transactions_per_s" in row.figures]
    if in_transactions:
        plots.append(
            _bars("records/s in transactions, as a share of plain idempotent", in_transactions, "share_of_plain")
        )
    return plots


def _bars(title: str, rows: Sequence[Row], name: str) -> str:
    return bar_chart(title, [Bar(row.case, row.subject, row.figures[name], cell(row, name)) for row in rows])


def _history(history: Sequence[dict[str, Any]]) -> list[str]:
    """Charts full runs only, because a quick run says little about a change."""
    full = [row for row in history if "--quick" not in row.get("options", "")]
    charts = []
    for title, prefix, figure in HISTORY:
        by_run: dict[str, dict[str, float]] = {}
        for row in full:
            if row["name"].startswith(prefix) and figure in row["figures"]:
                by_run.setdefault(f"{row['at']} {row['commit']}", {})[row["subject"]] = row["figures"][figure]
        runs = dict(list(by_run.items())[-RUNS_SHOWN:])
        subjects = [
            subject for subject in ("memory", "cache", "disk") if all(subject in found for found in runs.values())
        ]
        if len(runs) > 1 and subjects:
            series = {subject: [found[subject] for found in runs.values()] for subject in subjects}
            charts.append(line_chart(f"over {len(runs)} runs: {title}", series, list(runs)))
    return charts


def _tables(rows: Sequence[Row]) -> list[str]:
    order = list(TITLES)
    ordered = sorted(rows, key=lambda row: order.index(row.group))
    return [_table(TITLES[group], list(found)) for group, found in groupby(ordered, key=lambda row: row.group)]


def _table(title: str, rows: Sequence[Row]) -> str:
    names = columns_of(rows)
    head = "".join(f"<th>{escape(text)}</th>" for text in ("", "", *(COLUMNS[name][0] for name in names), ""))
    lines = []
    for row in rows:
        goal = "" if row.goal is None else row.goal.text
        style = "" if row.goal is None else (" met" if row.goal.met else " missed")
        cells = "".join(f"<td>{escape(cell(row, name))}</td>" for name in names)
        lines.append(
            f"<tr><td>{escape(row.case)}</td><td>{escape(row.subject)}</td>{cells}"
            f'<td class="words{style}">{escape(goal)}</td></tr>'
        )
    return f'<h2>{escape(title)}</h2><div class="scroll"><table><tr>{head}</tr>{"".join(lines)}</table></div>'

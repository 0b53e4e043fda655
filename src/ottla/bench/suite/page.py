"""Writes `report.html`: one page with charts and tables, without external resources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from ottla.bench.suite.failures import failures_of, heading_of
from ottla.bench.suite.figures import FIGURES, shown
from ottla.bench.suite.page_style import STYLE
from ottla.bench.suite.plots import (
    RatioRow,
    Series,
    ShareRow,
    SpreadRow,
    lines_chart,
    ratio_chart,
    shares_chart,
    spread_chart,
)
from ottla.bench.suite.run_results import RatioResult, Results
from ottla.bench.suite.settings import SETTINGS
from ottla.bench.suite.statistics import summary
from ottla.bench.suite.views import Curve, Group, at_full_speed, latency_curves, ranked, throughput_groups

PAGE_FILE = "report.html"
RANKED = (("records_per_s", "throughput"), ("p99_us", "p99 latency"))
BEHIND = 0.01
"""If there was no room for more than this share of the records, the load exceeds the capacity of the target."""


def write_page(directory: Path, results: Results) -> Path:
    """Writes the page next to the results and returns its path."""
    path = (directory if directory.is_dir() else directory.parent) / PAGE_FILE
    name = escape(str(results.matrix.get("name") or "results"))
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>{name}</title><style>{STYLE}</style></head><body>",
        f"<h1>{name}</h1>",
        f"<p>{escape(str(results.matrix.get('about', '')))}</p>",
        *_failed(results),
        _where(results),
        *_ratio_parts(results),
        *_section("Throughput", [_throughput(group, results) for group in throughput_groups(results)]),
        *_section(
            "Latency against offered load",
            [part for curves in latency_curves(results) for part in (_latency(curves), _taken(curves))],
        ),
        *_section("Effect of each setting", _rankings(results)),
        *_section("All figures", [_note(results), _table(results)]),
        *_section("Targets", [_targets(results)]),
        *_section("Skipped", _left_out(results)),
        "</body></html>",
    ]
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _section(title: str, parts: Sequence[str]) -> list[str]:
    return [f"<h2>{escape(title)}</h2>", *parts] if parts else []


def _failed(results: Results) -> list[str]:
    """Lists the failures first on the page, because readers must know which figures are missing."""
    failures = failures_of(results)
    if not failures:
        return []
    items = "".join(f"<li>{escape(failure.text)}</li>" for failure in failures)
    return [f'<section class="failed"><h2>{heading_of(failures)}</h2><ul>{items}</ul></section>']


def _where(results: Results) -> str:
    items = [
        f"{run['at']}, commit {run['commit'] or 'unknown'}, {run['machine']}, Linux {run['kernel']}, "
        f"load average {run['load_before']} before"
        for run in results.runs
    ]
    return f'<ul class="quiet">{"".join(f"<li>{escape(item)}</li>" for item in items)}</ul>'


def _ratio_parts(results: Results) -> list[str]:
    if not results.peer:
        return []
    found = results.ratios()
    rows = [
        RatioRow(
            f"{each.label}: {_plain_heading(each.figure)}",
            *each.ratio,
            None if each.goal is None else each.goal.bound,
            _verdict(each),
        )
        for each in found
    ]
    failed = results.without_ratio()
    if not rows and not failed:
        return []
    title = f"{results.subject} / {results.peer}, median of the repetitions"
    plot = ratio_chart(title, rows, f"{results.peer} has more", f"{results.subject} has more") if rows else ""
    head = _cells("th", ["configuration", "figure", "ratio", "lowest", "highest", "goal", ""])
    lines = [_ratio_line(each) for each in found]
    lines += [
        f'<tr>{_cells("td", [label])}<td class="text-missed">{escape(targets)} failed</td></tr>'
        for label, targets in failed
    ]
    note = (
        "<p>Each repetition runs the two one after the other and has a ratio; the plot shows the median of "
        "the ratios. More is better for records; less is better for milliseconds, CPU seconds and MB.</p>"
    )
    return [f"<h2>Against {escape(results.peer)}</h2>", note, plot, _wide(f"<tr>{head}</tr>{''.join(lines)}")]


def _ratio_line(found: RatioResult) -> str:
    numbers = [f"{value:.2f}" for value in found.ratio]
    goal = "" if found.goal is None else f"{'>=' if found.goal.at_least else '<='} {found.goal.bound:g}"
    cells = _cells("td", [found.label, _plain_heading(found.figure), *numbers, goal])
    verdict = _verdict(found)
    return f'<tr>{cells}<td class="text-{verdict}">{verdict}</td></tr>'


def _verdict(found: RatioResult) -> str:
    if found.goal is None:
        return ""
    return "met" if found.goal.is_met(found.ratio.ratio) else "missed"


def _plain_heading(figure: str) -> str:
    return FIGURES[figure].heading.removesuffix(" ms")


def _throughput(group: Group, results: Results) -> str:
    rows = [SpreadRow(cell.label, list(cell.figures["mb_per_s"].values())) for cell in group.cells]
    title = f"Throughput of {group.title}, in MB/s of acknowledged records"
    return spread_chart(title, rows, "MB/s", results.targets.index(group.cells[0].target))


def _latency(curves: Sequence[Curve]) -> str:
    """Charts the latency of acknowledgements, or the end-to-end latency if consumers read at the same time."""
    end_to_end = all("end_to_end_p50_us" in cell.figures for curve in curves for cell in curve.cells)
    prefix = "end_to_end_" if end_to_end else ""
    series = []
    for at, curve in enumerate(curves):
        for name, dash in (("p50", ""), ("p99", "6 3"), ("p999", "2 3")):
            points, hollow = [], []
            for cell in curve.cells:
                found, behind = cell.summary(f"{prefix}{name}_us"), cell.summary("behind_share")
                if found is not None:
                    points.append((float(cell.configuration["producer.rate"]), found.median / 1000))
                    hollow.append(behind is not None and behind.median > BEHIND)
            shown_name = name.replace("p999", "p99.9")
            series.append(Series(f"{curve.target} {shown_name}", points, at, hollow, dash))
    kind = "end to end" if end_to_end else "of an acknowledgement"
    return lines_chart(
        _titled(f"Latency {kind}, from when a record was due", curves[0].label),
        series,
        "records/s offered",
        "ms (logarithmic)",
        log_y=True,
        hollow_text="Hollow points: the target did not accept the whole offered load",
    )


def _titled(title: str, configuration: str) -> str:
    return f"{title}: {configuration}" if configuration else title


def _taken(curves: Sequence[Curve]) -> str:
    """Charts acknowledged against offered load. The line is flat above a target's capacity if its goodput is stable."""
    series = []
    for at, curve in enumerate(curves):
        found = [(cell, cell.summary("records_per_s")) for cell in curve.cells]
        points = [
            (float(cell.configuration["producer.rate"]), speed.median) for cell, speed in found if speed is not None
        ]
        series.append(Series(curve.target, points, at))
    title = _titled("Records acknowledged against records offered", curves[0].label)
    return lines_chart(title, series, "records/s offered", "records/s acknowledged")


def _rankings(results: Results) -> list[str]:
    found = []
    for at, target in enumerate(results.targets):
        cells = at_full_speed([cell for where, cell in results.cells.items() if where[1] == target])
        for figure, name in RANKED:
            effects = [effect for effect in ranked(cells, figure) if effect.share >= 0.001]
            rows = [
                ShareRow(
                    effect.setting,
                    effect.share,
                    f"{effect.factor:.2f}x from {_value(effect.worst)} to {_value(effect.best)}",
                )
                for effect in effects
            ]
            if rows:
                found.append(shares_chart(f"{target}: share of the variation in {name}", rows, at))
    if found:
        found.insert(
            0,
            "<p>The share of the variation between all configurations (of the logarithm) that one setting "
            "explains alone, and the ratio of the figure with its best value to that with its worst value.</p>",
        )
    return found


def _value(value: object) -> str:
    return str(value) or "none"


def _note(results: Results) -> str:
    """Explains every term of the table."""
    names = [name for name in FIGURES if any(name in cell.figures for cell in results.cells.values())]
    meanings = [(FIGURES[name].heading, FIGURES[name].meaning) for name in names]
    meanings += [(name, SETTINGS[name].meaning) for name in results.varied() if name in SETTINGS]
    items = "".join(f"<li>{escape(name)}: {escape(meaning)}</li>" for name, meaning in meanings)
    return (
        '<p class="quiet">Medians of the repetitions; spread is of records/s, from the lowest to the highest. '
        "Where there is a rate, latencies are measured from when a record was due, so that stalls count; "
        "without one, from when the client got the record.</p><details><summary>Meaning of the "
        f"columns</summary><ul>{items}</ul></details>"
    )


def _table(results: Results) -> str:
    names = [name for name in FIGURES if any(name in cell.figures for cell in results.cells.values())]
    head = _cells("th", ["configuration", "target", "times", *(FIGURES[name].heading for name in names), "spread"])
    lines = []
    for cell in results.cells.values():
        summaries = [cell.summary(name) for name in names]
        texts = [
            "" if found is None else shown(name, found.median) for name, found in zip(names, summaries, strict=True)
        ]
        speed = cell.summary("records_per_s")
        spread, times = ("", "0") if speed is None else (f"{speed.spread:.0%}", str(speed.repetitions))
        lines.append(f"<tr>{_cells('td', [cell.label, cell.target, times, *texts, spread])}</tr>")
    return _wide(f"<tr>{head}</tr>{''.join(lines)}")


def _targets(results: Results) -> str:
    parts = []
    for target, facts in results.facts.items():
        figures = results.starts.get(target, {})
        starts = ", ".join(
            f"{FIGURES[name].heading} {shown(name, summary(values).median)} ({FIGURES[name].meaning})"
            for name, values in figures.items()
        )
        settings = ", ".join(f"{name}={value}" for name, value in facts.get("settings", {}).items()) or "defaults"
        jvm = f"; {facts['jvm']}" if "jvm" in facts else ""
        lines = "<br>".join(map(escape, (facts["software"] + jvm, settings, starts)))
        parts.append(f"<dt>{escape(target)}</dt><dd>{lines}</dd>")
    return f"<dl>{''.join(parts)}</dl>"


def _left_out(results: Results) -> list[str]:
    left_out = [f"{each['target']}: {each['label']}: {each['reason']}" for each in results.matrix.get("left_out", [])]
    items = "".join(f"<li>{escape(text)}</li>" for text in left_out)
    return [f"<ul>{items}</ul>"] if items else []


def _cells(kind: str, texts: Iterable[str]) -> str:
    return "".join(f"<{kind}>{escape(text)}</{kind}>" for text in texts)


def _wide(rows: str) -> str:
    return f'<div class="scroll"><table>{rows}</table></div>'

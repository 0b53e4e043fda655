"""Charts as inline SVG, without scripts, fonts or external resources."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

WIDTH = 860
LABEL_WIDTH = 300
VALUE_WIDTH = 90
BAR_HEIGHT = 15
GROUP_GAP = 10
TOP = 24
PLOT_WIDTH = WIDTH - LABEL_WIDTH - VALUE_WIDTH


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a chart."""

    case: str
    subject: str
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Range:
    """Three points on one line: the median and two percentiles."""

    case: str
    subject: str
    low: float
    middle: float
    high: float


BarOrRange = TypeVar("BarOrRange", Bar, Range)


def bar_chart(title: str, bars: Sequence[Bar]) -> str:
    """Draws horizontal bars, grouped by case, on a scale that starts at zero."""
    top_value = max((bar.value for bar in bars), default=0.0) or 1.0
    parts: list[str] = []
    y = float(TOP)
    for bar, is_first in with_group_starts(bars):
        y += GROUP_GAP if is_first else 0
        width = max(bar.value / top_value * PLOT_WIDTH, 1.0)
        parts.append(_label(bar.case if is_first else "", bar.subject, y))
        parts.append(_rect(bar.subject, LABEL_WIDTH, y, width, f"{bar.case}, {bar.subject}: {bar.text}"))
        parts.append(text_at(LABEL_WIDTH + width + 5, y + BAR_HEIGHT - 4, bar.text))
        y += BAR_HEIGHT + 2
    return svg(title, parts, y + GROUP_GAP)


def range_chart(title: str, ranges: Sequence[Range], unit: str) -> str:
    """Draws ranges on a logarithmic axis. Returns an empty string if no value is positive."""
    values = [value for found in ranges for value in (found.low, found.middle, found.high) if value > 0]
    if not values:
        return ""
    low, high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))
    scale = PLOT_WIDTH / max(math.log10(high / low), 1e-9)

    def at(value: float) -> float:
        return LABEL_WIDTH + math.log10(max(value, low) / low) * scale

    parts: list[str] = []
    y = float(TOP) + 16
    for found, is_first in with_group_starts(ranges):
        y += GROUP_GAP if is_first else 0
        centre = y + BAR_HEIGHT / 2
        parts.append(_label(found.case if is_first else "", found.subject, y))
        parts.append(
            f'<line class="{escape(found.subject)}" x1="{at(found.low):.1f}" x2="{at(found.high):.1f}" '
            f'y1="{centre}" y2="{centre}"/>'
        )
        for value, radius in ((found.low, 4.5), (found.middle, 3.0), (found.high, 2.0)):
            tip = escape(f"{found.case}, {found.subject}: {value:.3g} {unit}")
            parts.append(
                f'<circle class="{escape(found.subject)}" cx="{at(value):.1f}" cy="{centre}" r="{radius}">'
                f"<title>{tip}</title></circle>"
            )
        y += BAR_HEIGHT + 2
    grid = [_grid_line(at(10.0**power), y, f"{10.0**power:g} {unit}") for power in _decades(low, high)]
    return svg(title, grid + parts, y + GROUP_GAP)


def line_chart(title: str, series: dict[str, list[float]], labels: Sequence[str]) -> str:
    """Draws one point per run. Each series is drawn from 0 to the highest value of all series."""
    height, left = 200, 50
    top_value = max((value for values in series.values() for value in values), default=0.0) or 1.0
    step = (WIDTH - left - 160) / max(len(labels) - 1, 1)

    def y_of(value: float) -> float:
        return TOP + (height - TOP) * (1 - value / top_value)

    parts = [text_at(4, y_of(top_value) + 4, f"{top_value:.3g}"), text_at(4, y_of(0) + 4, "0")]
    parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH - 160}" y1="{y_of(0)}" y2="{y_of(0)}"/>')
    for name, values in series.items():
        subject = name.split()[-1]
        points = " ".join(f"{left + number * step:.1f},{y_of(value):.1f}" for number, value in enumerate(values))
        parts.append(f'<polyline class="{escape(subject)}" points="{points}"/>')
        for number, value in enumerate(values):
            tip = escape(f"{labels[number]}: {name} {value:.3g}")
            parts.append(
                f'<circle class="{escape(subject)}" cx="{left + number * step:.1f}" cy="{y_of(value):.1f}" r="3">'
                f"<title>{tip}</title></circle>"
            )
        parts.append(text_at(left + (len(values) - 1) * step + 8, y_of(values[-1]) + 4, f"{name} {values[-1]:.3g}"))
    return svg(title, parts, height + 14)


def with_group_starts(items: Sequence[BarOrRange]) -> list[tuple[BarOrRange, bool]]:
    """Returns each item, and whether it is the first of its case."""
    return [(item, not at or items[at - 1].case != item.case) for at, item in enumerate(items)]


def _decades(low: float, high: float) -> range:
    return range(round(math.log10(low)), round(math.log10(high)) + 1)


def _grid_line(x: float, bottom: float, text: str) -> str:
    line = f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP + 14}" y2="{bottom:.1f}"/>'
    return line + text_at(x + 2, TOP + 10, text)


def _rect(subject: str, x: float, y: float, width: float, tip: str) -> str:
    return (
        f'<rect class="{escape(subject)}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR_HEIGHT}" rx="2">'
        f"<title>{escape(tip)}</title></rect>"
    )


def _label(case: str, subject: str, y: float) -> str:
    baseline = y + BAR_HEIGHT - 4
    found = f'<text x="{LABEL_WIDTH - 6}" y="{baseline}" text-anchor="end" class="quiet">{escape(subject)}</text>'
    return found + (text_at(0, baseline, case) if case else "")


def text_at(x: float, y: float, text: str) -> str:
    """Returns an SVG text element with its left end at this point."""
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def svg(title: str, parts: Sequence[str], height: float) -> str:
    """Wraps the parts in an SVG element with a title and a fixed width."""
    head = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
    return "\n".join([head, f'<text x="0" y="14" class="title">{escape(title)}</text>', *parts, "</svg>"])

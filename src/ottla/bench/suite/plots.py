"""Plots of the report, as inline SVG: lines over an axis, ranges around one, and bars of shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from ottla.bench.charts import WIDTH, svg, text_at

COLOURS = 8
LEGEND_WIDTH = 270
LEFT, TOP, HEIGHT = 62, 34, 250
LINE_HEIGHT = 17
LABEL_WIDTH = 330
_STEPS = (1.0, 2.0, 5.0, 10.0)

Place = Callable[[float], float]


class Series(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    """0 to 7; the same for the same thing in all plots."""
    hollow: Sequence[bool] = ()
    """Points that are to be looked at with care."""
    dash: str = ""


class Axis(NamedTuple):
    """Values to places. `low` and `high` are ticks."""

    low: float
    high: float
    ticks: list[float]
    is_log: bool

    def place(self, value: float) -> float:
        """From 0 to 1."""
        if self.is_log:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear_axis(values: Sequence[float]) -> Axis:
    """From zero to a round number above the highest."""
    top = max(values, default=0.0) or 1.0
    raw = top / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(each * power for each in _STEPS if each * power >= raw * 0.999)
    count = math.ceil(top / step - 1e-9)
    return Axis(0.0, step * count, [step * at for at in range(count + 1)], is_log=False)


def log_axis(values: Sequence[float]) -> Axis:
    positive = [value for value in values if value > 0] or [1.0]
    marks = [each * 10.0**power for power in range(-6, 13) for each in _STEPS[:3]]
    low = max(mark for mark in marks if mark <= min(positive) * 1.0001)
    high = min(mark for mark in marks if mark >= max(positive) * 0.9999 and mark > low)
    inside = [mark for mark in marks if low <= mark <= high]
    decades = [mark for mark in inside if math.log10(mark) % 1 == 0]
    return Axis(low, high, inside if len(inside) <= 8 or len(decades) < 2 else decades, is_log=True)


def lines_chart(
    title: str,
    series: Sequence[Series],
    x_title: str,
    y_title: str,
    *,
    log_y: bool = False,
    x_ticks: Sequence[float] = (),
) -> str:
    xs = [x for each in series for x, _ in each.points]
    ys = [y for each in series for _, y in each.points]
    y_axis = log_axis(ys) if log_y else linear_axis(ys)
    x_axis = Axis(min(x_ticks) - 0.3, max(x_ticks) + 0.3, list(x_ticks), is_log=False) if x_ticks else linear_axis(xs)
    right, bottom = WIDTH - LEGEND_WIDTH, TOP + HEIGHT

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return LEFT + x_axis.place(point[0]) * (right - LEFT), bottom - y_axis.place(point[1]) * HEIGHT

    x_label = f'<text x="{right}" y="{bottom + 30}" text-anchor="end">{escape(x_title)}</text>'
    parts = [text_at(0, TOP - 6, y_title), x_label]
    for tick in y_axis.ticks:
        y = at((x_axis.low, tick))[1]
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" class="quiet">{number_text(tick)}</text>')
    for tick in x_axis.ticks:
        x = at((tick, y_axis.low))[0]
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle" class="quiet">{number_text(tick)}</text>'
        )
    for row, each in enumerate(series):
        parts += _line(each, [at(point) for point in each.points])
        parts += _legend(each, right + 14, TOP + 4 + row * LINE_HEIGHT)
    return svg(title, parts, max(bottom + 38, TOP + 12 + len(series) * LINE_HEIGHT))


def _line(series: Series, places: Sequence[tuple[float, float]]) -> list[str]:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dash = f' stroke-dasharray="{series.dash}"' if series.dash else ""
    found = [f'<polyline class="s{series.colour % COLOURS}" points="{points}"{dash}/>']
    for at, ((x, y), (value_x, value_y)) in enumerate(zip(places, series.points, strict=True)):
        tip = escape(f"{series.name}: {number_text(value_y)} at {number_text(value_x)}")
        kind = "hollow " if at < len(series.hollow) and series.hollow[at] else ""
        place = f'cx="{x:.1f}" cy="{y:.1f}" r="3.5"'
        found.append(f'<circle class="{kind}s{series.colour % COLOURS}" {place}><title>{tip}</title></circle>')
    return found


def _legend(series: Series, x: float, y: float) -> list[str]:
    dash = f' stroke-dasharray="{series.dash}"' if series.dash else ""
    swatch = f'<line class="s{series.colour % COLOURS}" x1="{x}" x2="{x + 18}" y1="{y}" y2="{y}"{dash}/>'
    return [swatch, text_at(x + 24, y + 4, shortened(series.name, 38))]


class RatioRow(NamedTuple):
    label: str
    ratio: float
    low: float
    high: float
    goal: float | None
    verdict: str
    """met, missed, or nothing."""


def ratio_chart(title: str, rows: Sequence[RatioRow], left_text: str, right_text: str) -> str:
    """Around one, on a logarithmic axis, so that twice and half lie equally far from it."""
    values = [value for row in rows for value in (row.ratio, row.low, row.high, row.goal or 1.0, 1.0)]
    axis = log_axis([*values, min(values) * 0.95, max(values) * 1.05])
    right, bottom = WIDTH - 70, TOP + 14 + len(rows) * LINE_HEIGHT

    def x_of(value: float) -> float:
        return LABEL_WIDTH + axis.place(value) * (right - LABEL_WIDTH)

    parts = []
    for tick in axis.ticks:
        parts.append(f'<line class="grid" x1="{x_of(tick):.1f}" x2="{x_of(tick):.1f}" y1="{TOP}" y2="{bottom}"/>')
        mark = f"{number_text(tick)}x"
        parts.append(f'<text x="{x_of(tick):.1f}" y="{TOP - 4}" text-anchor="middle" class="quiet">{mark}</text>')
    one = x_of(1.0)
    parts.append(f'<line class="one" x1="{one:.1f}" x2="{one:.1f}" y1="{TOP}" y2="{bottom}"/>')
    for at, row in enumerate(rows):
        parts += _ratio_row(row, TOP + 14 + at * LINE_HEIGHT, x_of)
    parts.append(
        f'<text x="{one - 8:.1f}" y="{bottom + 15}" text-anchor="end" class="quiet">{escape(left_text)}</text>'
    )
    parts.append(f'<text x="{one + 8:.1f}" y="{bottom + 15}" class="quiet">{escape(right_text)}</text>')
    return svg(title, parts, bottom + 24)


def _ratio_row(row: RatioRow, y: float, x_of: Place) -> list[str]:
    kind = row.verdict or "s0"
    found = [f'<text x="{LABEL_WIDTH - 10}" y="{y + 4}" text-anchor="end">{escape(shortened(row.label, 56))}</text>']
    found.append(f'<line class="{kind}" x1="{x_of(row.low):.1f}" x2="{x_of(row.high):.1f}" y1="{y}" y2="{y}"/>')
    if row.goal is not None:
        x = x_of(row.goal)
        found.append(f'<line class="goal" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 6}" y2="{y + 6}"/>')
    tip = escape(f"{row.label}: {row.ratio:.3g}, {row.low:.3g} to {row.high:.3g}")
    found.append(f'<circle class="{kind}" cx="{x_of(row.ratio):.1f}" cy="{y}" r="4.5"><title>{tip}</title></circle>')
    found.append(text_at(WIDTH - 60, y + 4, f"{row.ratio:.2f}x"))
    return found


class ShareRow(NamedTuple):
    label: str
    share: float
    text: str


def shares_chart(title: str, rows: Sequence[ShareRow], colour: int) -> str:
    left, span = 210, 280
    parts = []
    for at, row in enumerate(rows):
        y = TOP + at * (LINE_HEIGHT + 3)
        parts.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(row.label)}</text>')
        width = max(row.share * span, 1.0)
        parts.append(
            f'<rect class="s{colour}" x="{left}" y="{y}" width="{width:.1f}" height="{LINE_HEIGHT - 2}" rx="2"/>'
        )
        parts.append(text_at(left + width + 6, y + 12, f"{row.share:.0%}  {row.text}"))
    return svg(title, parts, TOP + len(rows) * (LINE_HEIGHT + 3) + 8)


def number_text(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    if value >= 10_000:
        return f"{value / 1e3:.4g}k"
    return f"{value:.4g}"


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"

"""Charts of the report as inline SVG: lines, repetitions with their median, ratios around one, and bars.

Each chart has a title and, unless all its marks are alike, a legend below. Long labels are wrapped, not truncated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from statistics import median
from textwrap import wrap
from typing import NamedTuple

from ottla.bench.charts import WIDTH, text_at

COLOURS = 8
LEFT, TOP, HEIGHT = 62, 26, 250
RIGHT = 20
LINE_HEIGHT = 17
LABEL_WIDTH = 330
LABEL_CHARACTERS = 50
"""The number of characters that fit into the width of a label."""
WORD_HEIGHT = 13
VALUE_WIDTH = 170
CHARACTER_WIDTH = 6.2
"""A conservative width of a character in the font of the charts, to estimate the width of a legend's entry."""
_STEPS = (1.0, 2.0, 5.0, 10.0)

Place = Callable[[float], float]


class Series(NamedTuple):
    """One line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    """0 to 7; the same for the same thing in all charts."""
    hollow: Sequence[bool] = ()
    """Marks points to be read with care."""
    dash: str = ""


class Axis(NamedTuple):
    """Maps values to positions. `low` and `high` are ticks."""

    low: float
    high: float
    ticks: list[float]
    is_log: bool

    def place(self, value: float) -> float:
        """Returns a position from 0 to 1."""
        if self.is_log:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear_axis(values: Sequence[float]) -> Axis:
    """Returns an axis from zero to a round number above the highest value."""
    top = max(values, default=0.0) or 1.0
    raw = top / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(each * power for each in _STEPS if each * power >= raw * 0.999)
    count = math.ceil(top / step - 1e-9)
    return Axis(0.0, step * count, [step * at for at in range(count + 1)], is_log=False)


def log_axis(values: Sequence[float]) -> Axis:
    """Returns a logarithmic axis that covers the positive values, with round marks."""
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
    hollow_text: str = "",
) -> str:
    """Draws lines over an axis. `hollow_text` explains hollow points in the legend."""
    xs = [x for each in series for x, _ in each.points]
    ys = [y for each in series for _, y in each.points]
    y_axis = log_axis(ys) if log_y else linear_axis(ys)
    x_axis = linear_axis(xs)
    right, bottom = WIDTH - RIGHT, TOP + HEIGHT

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return LEFT + x_axis.place(point[0]) * (right - LEFT), bottom - y_axis.place(point[1]) * HEIGHT

    x_label = f'<text x="{right}" y="{bottom + 31}" text-anchor="end" class="quiet">{escape(x_title)}</text>'
    parts = [f'<text x="0" y="{TOP - 12}" class="quiet">{escape(y_title)}</text>', x_label]
    for tick in y_axis.ticks:
        y = at((x_axis.low, tick))[1]
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" class="quiet">{number_text(tick)}</text>')
    for tick in x_axis.ticks:
        x = at((tick, y_axis.low))[0]
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle" class="quiet">{number_text(tick)}</text>'
        )
    for each in series:
        parts += _line(each, [at(point) for point in each.points])
    entries = [(_swatch(each), each.name) for each in series]
    if hollow_text and any(any(each.hollow) for each in series):
        entries.append(('<circle class="hollow s0" cx="9" cy="0" r="3.5"/>', hollow_text))
    marks, end = legend(entries, LEFT, bottom + 48)
    return figure(title, parts + marks, end)


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


def _swatch(series: Series) -> str:
    dash = f' stroke-dasharray="{series.dash}"' if series.dash else ""
    return f'<line class="s{series.colour % COLOURS}" x1="0" x2="18" y1="0" y2="0"{dash}/>'


def legend(entries: Sequence[tuple[str, str]], left: float, top: float) -> tuple[list[str], float]:
    """Returns a legend in as many lines as it needs, and where it ends. Marks are drawn around (9, 0)."""
    parts, x, y = [], left, top
    for mark, text in entries:
        width = 24 + len(text) * CHARACTER_WIDTH
        if x > left and x + width > WIDTH:
            x, y = left, y + LINE_HEIGHT
        parts.append(f'<g class="legend" transform="translate({x:.1f} {y:.1f})">{mark}{text_at(24, 4, text)}</g>')
        x += width + 14
    return parts, y + LINE_HEIGHT


def _row_label(text: str, y: float) -> list[str]:
    """Draws a label to the left of a row whose middle is `y`, in as many lines as it needs."""
    lines = label_lines(text)
    first = y + 4 - (len(lines) - 1) * WORD_HEIGHT / 2
    return [
        f'<text x="{LABEL_WIDTH - 10}" y="{first + at * WORD_HEIGHT:.1f}" text-anchor="end">{escape(line)}</text>'
        for at, line in enumerate(lines)
    ]


def label_lines(text: str) -> list[str]:
    """Breaks a label into lines that fit; at least one."""
    return wrap(text, LABEL_CHARACTERS, break_on_hyphens=False) or [""]


def row_places(labels: Sequence[str], top: float) -> tuple[list[float], float]:
    """Returns the middle of each row, and the end of the last one."""
    places, y = [], top
    for label in labels:
        height = max(LINE_HEIGHT, len(label_lines(label)) * WORD_HEIGHT + 6)
        places.append(y + height / 2)
        y += height
    return places, y


class SpreadRow(NamedTuple):
    """A row of a spread chart."""

    label: str
    values: Sequence[float]
    """One value for each repetition."""


def spread_chart(title: str, rows: Sequence[SpreadRow], unit: str, colour: int) -> str:
    """Draws each row with its repetitions as points, a line from the lowest to the highest, and their median."""
    axis = linear_axis([value for row in rows for value in row.values])
    right = WIDTH - VALUE_WIDTH
    places, bottom = row_places([row.label for row in rows], TOP + 6)

    def x_of(value: float) -> float:
        return LABEL_WIDTH + axis.place(value) * (right - LABEL_WIDTH)

    parts = []
    for tick in axis.ticks:
        x = x_of(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom:.1f}"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP - 6}" text-anchor="middle" class="quiet">{number_text(tick)}</text>')
    parts.append(f'<text x="{right + 24}" y="{TOP - 6}" class="quiet">median (range)</text>')
    kind = f"s{colour % COLOURS}"
    for row, y in zip(rows, places, strict=True):
        parts += _row_label(row.label, y)
        parts += _spread_marks(row, y, x_of, kind, unit, right + 24)
    entries = [
        (f'<circle class="{kind}" cx="9" cy="0" r="4.5"/>', "median"),
        (f'<circle class="hollow {kind}" cx="9" cy="0" r="3"/>', "one repetition"),
        (f'<line class="thin {kind}" x1="0" x2="18" y1="0" y2="0"/>', "lowest to highest"),
    ]
    marks, bottom = legend(entries, LABEL_WIDTH, bottom + 16)
    return figure(title, parts + marks, bottom)


def _spread_marks(row: SpreadRow, y: float, x_of: Place, kind: str, unit: str, text_x: float) -> list[str]:
    middle, low, high = median(row.values), min(row.values), max(row.values)
    found = [f'<line class="thin {kind}" x1="{x_of(low):.1f}" x2="{x_of(high):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>']
    for value in row.values if len(row.values) > 1 else ():
        tip = escape(f"{row.label}: {number_text(value)} {unit}")
        place = f'cx="{x_of(value):.1f}" cy="{y:.1f}" r="3"'
        found.append(f'<circle class="hollow {kind}" {place}><title>{tip}</title></circle>')
    tip = escape(f"{row.label}: median {number_text(middle)} {unit}")
    place = f'cx="{x_of(middle):.1f}" cy="{y:.1f}" r="4.5"'
    found.append(f'<circle class="{kind}" {place}><title>{tip}</title></circle>')
    text = rounded(middle) + (f" ({rounded(low)} to {rounded(high)})" if len(row.values) > 1 else "")
    return [*found, text_at(text_x, y + 4, text)]


def figure(title: str, parts: Sequence[str], height: float) -> str:
    """Wraps parts in a figure. The title is text of the page, so that a long one can wrap."""
    head = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
    return "\n".join([f"<figure><figcaption>{escape(title)}</figcaption>", head, *parts, "</svg></figure>"])


class RatioRow(NamedTuple):
    """A row of a ratio chart."""

    label: str
    ratio: float
    low: float
    high: float
    goal: float | None
    verdict: str
    """met, missed, or empty."""


def ratio_chart(title: str, rows: Sequence[RatioRow], left_text: str, right_text: str) -> str:
    """Draws ratios on a logarithmic axis around one, so that twice and half are equally far from it."""
    values = [value for row in rows for value in (row.ratio, row.low, row.high, row.goal or 1.0, 1.0)]
    axis = log_axis([*values, min(values) * 0.95, max(values) * 1.05])
    right = WIDTH - 70
    places, bottom = row_places([row.label for row in rows], TOP + 6)

    def x_of(value: float) -> float:
        return LABEL_WIDTH + axis.place(value) * (right - LABEL_WIDTH)

    parts = []
    for tick in axis.ticks:
        parts.append(f'<line class="grid" x1="{x_of(tick):.1f}" x2="{x_of(tick):.1f}" y1="{TOP}" y2="{bottom}"/>')
        mark = f"{number_text(tick)}x"
        parts.append(f'<text x="{x_of(tick):.1f}" y="{TOP - 4}" text-anchor="middle" class="quiet">{mark}</text>')
    one = x_of(1.0)
    parts.append(f'<line class="one" x1="{one:.1f}" x2="{one:.1f}" y1="{TOP}" y2="{bottom}"/>')
    for row, y in zip(rows, places, strict=True):
        parts += _ratio_row(row, y, x_of)
    parts.append(
        f'<text x="{one - 8:.1f}" y="{bottom + 15}" text-anchor="end" class="quiet">{escape(left_text)}</text>'
    )
    parts.append(f'<text x="{one + 8:.1f}" y="{bottom + 15}" class="quiet">{escape(right_text)}</text>')
    marks, bottom = legend(_ratio_legend(rows), LABEL_WIDTH, bottom + 36)
    return figure(title, parts + marks, bottom)


def _ratio_legend(rows: Sequence[RatioRow]) -> list[tuple[str, str]]:
    texts = {"": "median", "met": "median, goal met", "missed": "median, goal missed"}
    verdicts = [verdict for verdict in texts if any(row.verdict == verdict for row in rows)]
    entries = [(f'<circle class="{each or "s0"}" cx="9" cy="0" r="4.5"/>', texts[each]) for each in verdicts]
    entries.append(('<line class="s0" x1="0" x2="18" y1="0" y2="0"/>', "lowest to highest"))
    if any(row.goal is not None for row in rows):
        entries.append(('<line class="goal" x1="9" x2="9" y1="-6" y2="6"/>', "goal"))
    return entries


def _ratio_row(row: RatioRow, y: float, x_of: Place) -> list[str]:
    kind = row.verdict or "s0"
    found = _row_label(row.label, y)
    found.append(f'<line class="{kind}" x1="{x_of(row.low):.1f}" x2="{x_of(row.high):.1f}" y1="{y}" y2="{y}"/>')
    if row.goal is not None:
        x = x_of(row.goal)
        found.append(f'<line class="goal" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 6}" y2="{y + 6}"/>')
    tip = escape(f"{row.label}: {row.ratio:.3g}, {row.low:.3g} to {row.high:.3g}")
    found.append(f'<circle class="{kind}" cx="{x_of(row.ratio):.1f}" cy="{y}" r="4.5"><title>{tip}</title></circle>')
    found.append(text_at(WIDTH - 60, y + 4, f"{row.ratio:.2f}x"))
    return found


class ShareRow(NamedTuple):
    """A row of a shares chart."""

    label: str
    share: float
    text: str


def shares_chart(title: str, rows: Sequence[ShareRow], colour: int) -> str:
    """Draws horizontal bars for shares from 0 to 1."""
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
    return figure(title, parts, TOP + len(rows) * (LINE_HEIGHT + 3) + 8)


def rounded(value: float) -> str:
    """Returns the number with three significant digits, or shortened above 1,000."""
    return f"{value:.3g}" if value < 1000 else number_text(value)


def number_text(value: float) -> str:
    """Returns the number with up to four significant digits; thousands as k, millions as M."""
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    if value >= 10_000:
        return f"{value / 1e3:.4g}k"
    return f"{value:.4g}"

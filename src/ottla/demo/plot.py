"""The plots of the demo page: acknowledged records per second around the kill, and a table's size over a day."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape

from ottla.bench.charts import WIDTH, text_at
from ottla.bench.suite.plots import LINE_HEIGHT, figure, legend, linear_axis, number_text
from ottla.demo.results import CrashResults, Event, Sample

TOP, HEIGHT, LEFT, RIGHT = 24, 260, 60, 20
BUCKETS = 60
MARK_TOP = TOP + 8


def siege_plot(story: CrashResults) -> str:
    """Plots acknowledged records per second and marks what happened to the brokers meanwhile."""
    rates = rates_of(story.samples, BUCKETS)
    axis = linear_axis([rate for _, rate in rates])
    last_s = max(story.write_s, *(event.at_s for event in story.events)) if story.events else story.write_s

    def x_of(at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at_s / max(last_s, 1e-9)

    def y_of(rate: float) -> float:
        return HEIGHT - (HEIGHT - TOP) * axis.place(rate)

    parts = []
    for tick in axis.ticks:
        y = y_of(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" class="quiet">{number_text(tick)}</text>')
    for tick in linear_axis([last_s]).ticks:
        if tick <= last_s:
            place = f'x="{x_of(tick):.1f}" y="{HEIGHT + 16}" text-anchor="middle"'
            parts.append(f'<text {place} class="quiet">{number_text(tick)} s</text>')
    points = " ".join(f"{x_of(at_s):.1f},{y_of(rate):.1f}" for at_s, rate in rates)
    parts.append(f'<polyline class="s0" points="{points}"/>')
    parts += _event_marks(story.events, x_of)
    entries = [('<line class="s0" x1="0" x2="18" y1="0" y2="0"/>', "records acknowledged a second, all partitions")]
    entries += [
        (f'<circle class="s{_colour(event)}" cx="9" cy="0" r="8"/>{_number(9, 4, at + 1)}', event_text(event))
        for at, event in enumerate(story.events)
    ]
    marks, bottom = legend(entries, LEFT, HEIGHT + 40)
    title = f"Acknowledged records a second while the leader is killed ({story.records:,} records, acks=all)"
    return figure(title, parts + marks, bottom + 4)


def rates_of(samples: Sequence[Sample], buckets: int) -> list[tuple[float, float]]:
    """Returns the middle of each time bucket and the records acknowledged per second in it."""
    if len(samples) < 2:
        return []
    last_s = samples[-1].at_s
    times = [sample.at_s for sample in samples]

    def count_at(at_s: float) -> float:
        after = min(max(bisect_right(times, at_s), 1), len(samples) - 1)
        one, two = samples[after - 1], samples[after]
        share = (at_s - one.at_s) / max(two.at_s - one.at_s, 1e-9)
        return one.acknowledged + min(share, 1.0) * (two.acknowledged - one.acknowledged)

    width = last_s / buckets
    return [
        ((at + 0.5) * width, (count_at((at + 1) * width) - count_at(at * width)) / max(width, 1e-9))
        for at in range(buckets)
    ]


def event_text(event: Event) -> str:
    """Returns the label of an event, with its time."""
    return f"{event.text}, {event.at_s:.1f} s"


def _event_marks(events: Sequence[Event], x_of: Callable[[float], float]) -> list[str]:
    """Draws numbered marks, because two events are often milliseconds apart and their texts would overlap."""
    found, free_x, y = [], 0.0, float(MARK_TOP)
    for at, event in enumerate(events):
        x = x_of(event.at_s)
        y = y + LINE_HEIGHT + 2 if at and x < free_x else float(MARK_TOP)
        free_x = x + 18
        place = f'x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{HEIGHT}"'
        found.append(f'<line class="thin s{_colour(event)}" {place} stroke-dasharray="4 4"/>')
        tip = f"<title>{escape(event_text(event))}</title>"
        found.append(f'<circle class="s{_colour(event)}" cx="{x:.1f}" cy="{y:.1f}" r="8">{tip}</circle>')
        found.append(_number(x, y + 4, at + 1))
    return found


def _colour(event: Event) -> int:
    return 6 if "killed" in event.text else 2


def _number(x: float, y: float, number: int) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" class="on-mark">{number}</text>'


def table_plot(rows_by_minute: list[tuple[int, int]], bad_job_ms: int, restored: int) -> str:
    """Plots the table's size over the day, the bad job and the restored table."""
    first_ms, last_ms = rows_by_minute[0][0], rows_by_minute[-1][0]
    axis = linear_axis([restored, *(count for _, count in rows_by_minute)])

    def x_of(at_ms: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (at_ms - first_ms) / max(last_ms - first_ms, 1)

    def y_of(count: float) -> float:
        return HEIGHT - (HEIGHT - TOP) * axis.place(count)

    points = " ".join(f"{x_of(at_ms):.1f},{y_of(count):.1f}" for at_ms, count in rows_by_minute)
    bad_x, now = x_of(bad_job_ms), rows_by_minute[-1][1]
    parts = []
    for tick in axis.ticks:
        y = y_of(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" class="quiet">{number_text(tick)}</text>')
    for at_ms, anchor in ((first_ms, "start"), (bad_job_ms, "middle"), (last_ms, "end")):
        place = f'x="{x_of(at_ms):.1f}" y="{HEIGHT + 16}" text-anchor="{anchor}"'
        parts.append(f'<text {place} class="quiet">{clock(at_ms)}</text>')
    parts += [
        f'<line class="thin s6" x1="{bad_x:.1f}" x2="{bad_x:.1f}" y1="{TOP}" y2="{HEIGHT}" stroke-dasharray="4 4"/>',
        f'<polyline class="s0" points="{points}"/>',
        f'<circle class="s2" cx="{bad_x:.1f}" cy="{y_of(restored):.1f}" r="6"/>',
        text_at(bad_x + 12, y_of(restored) - 6, f"restored: {restored:,}"),
        f'<text x="{WIDTH - RIGHT}" y="{y_of(now) - 8:.1f}" text-anchor="end">now: {now:,}</text>',
    ]
    entries = [
        ('<line class="s0" x1="0" x2="18" y1="0" y2="0"/>', "rows of the table"),
        ('<line class="thin s6" x1="0" x2="18" y1="0" y2="0" stroke-dasharray="4 4"/>', "the bad job"),
        ('<circle class="s2" cx="9" cy="0" r="6"/>', "the restored table"),
    ]
    marks, bottom = legend(entries, LEFT, HEIGHT + 40)
    return figure("Rows of a table of customers over a day, from the archive of its change log", parts + marks, bottom)


def clock(at_ms: int) -> str:
    """Returns the time of day in UTC, as hours and minutes."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M")

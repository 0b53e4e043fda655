"""The size of the table over the day, with the bad job and what was restored: one HTML file, nothing from elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from pathlib import Path

from ottla.bench.charts import TOP, WIDTH, svg, text_at
from ottla.bench.report import STYLE

HEIGHT, LEFT, RIGHT = 300, 60, 150


def write_plot(path: Path, rows_by_minute: list[tuple[int, int]], bad_job_ms: int, restored: int) -> Path:
    title = "A table of customers over a day, out of the archive of its change log"
    sentence = (
        f"At {_clock(bad_job_ms)} a bad job deleted every second customer. The table was restored as it was before: "
        f"{restored:,} rows, from Parquet, after the log had let them go."
    )
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        _chart(rows_by_minute, bad_job_ms, restored),
        f"<p>{sentence}</p>",
        "</body></html>",
    ]
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _chart(rows_by_minute: list[tuple[int, int]], bad_job_ms: int, restored: int) -> str:
    first_ms, last_ms = rows_by_minute[0][0], rows_by_minute[-1][0]
    most = max(restored, *(count for _, count in rows_by_minute))

    def x_of(at_ms: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (at_ms - first_ms) / max(last_ms - first_ms, 1)

    def y_of(count: int) -> float:
        return TOP + 10 + (HEIGHT - TOP - 10) * (1 - count / most)

    points = " ".join(f"{x_of(at_ms):.1f},{y_of(count):.1f}" for at_ms, count in rows_by_minute)
    bad_x, restored_y, end_y = x_of(bad_job_ms), y_of(restored), y_of(rows_by_minute[-1][1])
    return svg(
        "rows",
        [
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_of(0)}" y2="{y_of(0)}"/>',
            *(text_at(4, y_of(count) + 4, f"{count:,}") for count in (0, most)),
            *(text_at(x_of(at_ms) - 14, HEIGHT + 16, _clock(at_ms)) for at_ms in (first_ms, bad_job_ms, last_ms)),
            f'<line class="disk" x1="{bad_x:.1f}" x2="{bad_x:.1f}" y1="{TOP}" y2="{HEIGHT}" stroke-dasharray="4 4"/>',
            text_at(bad_x + 6, HEIGHT - 8, "the bad job"),
            f'<polyline class="memory" fill="none" style="fill:none" points="{points}"/>',
            text_at(WIDTH - RIGHT + 6, end_y + 4, f"now: {rows_by_minute[-1][1]:,}"),
            f'<circle class="cache" cx="{bad_x:.1f}" cy="{restored_y:.1f}" r="6"><title>restored</title></circle>',
            text_at(bad_x + 12, restored_y + 4, f"restored: {restored:,}"),
        ],
        HEIGHT + 24,
    )


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M")

"""Writes `demo.html`: all results of the demo on one self-contained page."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.bench.suite.page_style import STYLE
from ottla.demo.figures import figures_of, verdict_of
from ottla.demo.plot import clock, siege_plot, table_plot
from ottla.demo.results import CrashResults

if TYPE_CHECKING:
    from ottla.demo.kv import KvResults
    from ottla.demo.pipeline import PipelineResults

OWN_STYLE = """
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; padding: 0; list-style: none; }
.tiles li { border: 1px solid var(--line); border-radius: 8px; padding: .6rem 1rem; min-width: 7.5rem; }
.tiles b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums; }
.verdict { font-weight: 600; padding: .5rem 1rem; border-left: 4px solid currentColor; }
svg .on-mark { fill: var(--page); font-weight: 600; }
td:last-child { text-align: right; } td:first-child { text-align: left; }
"""


@dataclass(slots=True)
class Demo:
    """The results to show. A part that was left out is None."""

    story: CrashResults
    seed: int
    kv: KvResults | None = None
    pipeline: PipelineResults | None = None
    bad_job_ms: int = 0
    pipeline_left_out: str = ""
    """Why the pipeline was left out, and what to install."""


def write_page(path: Path, demo: Demo) -> Path:
    """Writes the page and returns its path."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>The demo of Ottla</title><style>{STYLE}{OWN_STYLE}</style></head><body>",
        "<h1>The demo of Ottla</h1>",
        f'<p class="quiet">Three brokers, one machine, seed {demo.seed}.</p>',
        *_siege(demo.story),
        *_kv(demo.kv),
        *_pipeline(demo),
        "</body></html>",
    ]
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _siege(story: CrashResults) -> list[str]:
    found = story.findings
    tiles = [
        (f"{found.acknowledged:,}", "acknowledged"),
        (f"{found.read:,}", "read back"),
        (f"{found.missing:,}", "missing"),
        (f"{found.doubled:,}", "doubled"),
        (f"{found.reordered:,}", "reordered"),
        (f"{found.misplaced:,}", "misplaced"),
    ]
    is_good, sentence = verdict_of(story)
    kind = "text-met" if is_good else "text-missed"
    told = (
        f"Broker {story.victim} led partitions {', '.join(map(str, story.led))} when it was killed with -9, during the "
        "writes. It came back and caught up. When everything was written, all three brokers were killed at "
        "once and started again, and every record was read back and compared with the acknowledgements. "
        f"{story.probes} of the records are probes, which measured when a partition took writes again."
    )
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in found.problems)
    return [
        f"<h2>{story.records:,} records, a killed leader, then three killed brokers</h2>",
        f'<ul class="tiles">{"".join(f"<li><b>{number}</b>{name}</li>" for number, name in tiles)}</ul>',
        f'<p class="verdict {kind}">{escape(sentence)}</p>',
        f'<ul class="text-missed">{problems}</ul>' if problems else "",
        f"<p>{escape(told)}</p>",
        siege_plot(story),
        _table(figures_of(story)),
    ]


def _kv(story: KvResults | None) -> list[str]:
    if story is None:
        return []
    told = "Two stores share one log. The leading one was killed with -9 during the writes, and the other took over."
    return [
        "<h2>A key-value store whose only durability is a log</h2>",
        f"<p>{told}</p>",
        _table(
            [
                ("writes acknowledged", f"{story.count:,}"),
                ("values lost", f"{len(story.lost):,}"),
                ("from the kill to the next acknowledgement", f"{story.silence_s:.1f} s"),
            ]
        ),
        "" if not story.lost else '<p class="verdict text-missed">Acknowledged values are lost.</p>',
    ]


def _pipeline(demo: Demo) -> list[str]:
    title = "<h2>A table restored to before a bad job, with Spark</h2>"
    story = demo.pipeline
    if story is None:
        return [title, f"<p>{escape(demo.pipeline_left_out)}</p>"] if demo.pipeline_left_out else []
    is_good = story.is_same and not story.faults and story.archived == story.changes
    verdict = "The restored table is identical to the original, row by row."
    if not is_good:
        verdict = "The restored table differs from the original."
    told = (
        f"At {clock(demo.bad_job_ms)} a bad job deleted every second customer. The changes were archived to Parquet, "
        "retention removed them from the log, and the table was restored from the archive as it was before."
    )
    plot = table_plot(story.rows_by_minute, demo.bad_job_ms, story.rows_restored) if story.rows_by_minute else ""
    return [
        title,
        f"<p>{told}</p>",
        f'<p class="verdict {"text-met" if is_good else "text-missed"}">{verdict}</p>',
        plot,
        _table(
            [
                ("changes written", f"{story.changes:,}"),
                ("changes archived", f"{story.archived:,}"),
                ("records left in the log", f"{story.left_in_log:,}"),
                ("rows of the table now", f"{story.rows_now:,}"),
                ("rows restored", f"{story.rows_restored:,}"),
            ]
        ),
    ]


def _table(rows: list[tuple[str, str]]) -> str:
    lines = "".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in rows)
    return f'<div class="scroll"><table>{lines}</table></div>'

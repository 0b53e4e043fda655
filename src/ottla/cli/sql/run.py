"""Runs statements for `ottla sql` and shows their results."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.cli.output import count_text, print_json, print_table, say
from ottla.cli.pipeline.spark_interrupts import interrupts
from ottla.cli.sql.output import LiveTable, RowStream, plain, print_result

if TYPE_CHECKING:
    from ottla.spark.sql.context import Context
    from ottla.spark.sql.engine import Listing, Outcome
    from ottla.spark.sql.plans import Shape
    from ottla.spark.sql.running_query import Progress, RunningQuery
    from ottla.spark.sql.statements import Select, Statement

POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class DisplayOptions:
    """How results are shown."""

    as_json: bool
    limit: int | None
    start: str
    once: bool
    every: str


def run_statement(context: Context, statement: Statement, text: str, showing: DisplayOptions) -> None:
    """Runs one statement. A live SELECT runs until its limit or Ctrl-C; a started query continues in the background."""
    from ottla.spark.sql.engine import execute
    from ottla.spark.sql.statements import Select

    if isinstance(statement, Select):
        _run_select(context, statement, text, showing)
    else:
        _tell_outcome(execute(context, statement, text), showing)


def _tell_outcome(outcome: Outcome, showing: DisplayOptions) -> None:
    from ottla.spark.sql.engine import Confirmation, Listing

    if isinstance(outcome, Confirmation):
        say(outcome.sentence)
    elif isinstance(outcome, Listing):
        _list(outcome, as_json=showing.as_json)
    else:
        for query in outcome.queries:
            if showing.once:
                tell_end(query)
            else:
                say(f"{query.name}: running")


def _list(listing: Listing, *, as_json: bool) -> None:
    if as_json:
        for row in listing.rows:
            named = zip(listing.headings, row, strict=True)
            print_json({name.replace(" ", "_") or "remark": plain(each) for name, each in named})
        return
    if listing.rows:
        print_table(listing.headings, listing.rows)
    else:
        say(f"no {listing.headings[0]}")
    for note in listing.notes:
        print(note)


def _run_select(context: Context, select: Select, text: str, showing: DisplayOptions) -> None:
    from ottla.spark.sql.selects import select_once

    if not showing.once:
        _run_live(context, select, text, showing)
        return
    result = select_once(context, select, text, limit=showing.limit)
    print_result(result.columns, result.rows, as_json=showing.as_json)
    if not result.is_whole and showing.limit is None:
        say(f"only the first {count_text(len(result.rows), 'row')} are shown")
    for name, count in result.bad.items():
        _tell_bad(context, name, count)


def _tell_bad(context: Context, name: str, count: int) -> None:
    if count:
        known = context.catalog.stream(name)
        from ottla.spark.sql.definitions import dead_letters_of

        topic = known.dead_letters if known is not None else dead_letters_of(name, context.dead_letters)
        place = f"see topic {topic} for the reasons" if topic is not None else "they are skipped"
        say(f"{count_text(count, 'record')} of {name} did not parse: {place}")


def _run_live(context: Context, select: Select, text: str, showing: DisplayOptions) -> None:
    from ottla.spark.sql.selects import select_live

    shown: list[RowStream | LiveTable] = []
    full = threading.Event()

    def on_rows(columns: Sequence[str], rows: list[tuple[Any, ...]], mode: str, shape: Shape) -> None:
        if full.is_set():
            return
        if not shown:
            shown.append(_display(mode, shape.keys, showing))
        display = shown[0]
        if isinstance(display, RowStream):
            display.show(columns, rows)
        else:
            display.show(columns, rows, is_all=mode == "complete")
        if display.is_full:
            full.set()

    live = select_live(context, select, text, on_rows, start=showing.start, every=showing.every)
    try:
        while not full.is_set():
            with interrupts.orderly(lambda: bool(shown or context.running)):
                if not full.wait(POLL_S):
                    for news in live.poll():
                        _tell_trouble(context, news)
    finally:
        for each in shown:
            each.close()
        live.running.stop()


def _display(mode: str, keys: Sequence[str], showing: DisplayOptions) -> RowStream | LiveTable:
    if mode == "append":
        return RowStream(as_json=showing.as_json, limit=showing.limit)
    chosen = keys if mode == "update" else ()
    return LiveTable(chosen, as_json=showing.as_json, limit=showing.limit, on_terminal=sys.stdout.isatty())


def _tell_trouble(context: Context, news: Progress) -> None:
    if news.late:
        say(f"{count_text(news.late, 'row')} arrived later than the watermark allows and were dropped")
    for name, count in news.bad.items():
        _tell_bad(context, name, count)


def watch(context: Context) -> None:
    """Reports the progress of queries until all have ended. Raises the failure of a query."""
    pause = threading.Event()
    while True:
        with interrupts.orderly():
            is_active = context.is_active()
            for news in context.tend():
                tell_progress(news)
            if not is_active:
                return
            pause.wait(POLL_S)


def tell_end(query: RunningQuery) -> None:
    """Reports a query that has processed all the data there was."""
    recent = query.query.recentProgress if query.query is not None else []
    rows = sum(each.numInputRows for each in recent)
    bad = "".join(f", {count:,} of {name} bad" for name, count in query.bad.items() if count)
    say(f"{query.name}: done, {count_text(rows, 'row')} read{bad}")


def tell_progress(news: Progress) -> None:
    """Reports one batch of a query."""
    if not news.rows:
        return
    lag = "" if news.lag is None else f"  lag {news.lag:,}"
    late = f"  {news.late:,} late" if news.late else ""
    bad = "".join(f"  {count:,} of {name} bad" for name, count in news.bad.items() if count)
    say(
        f"{news.name}: batch {news.batch}  {count_text(news.rows, 'row')}  {news.rows_per_s:,.0f} rows/s{lag}  "
        f"{news.duration_s:.2f} s{late}{bad}"
    )


@contextlib.contextmanager
def queries_ended(context: Context) -> Iterator[None]:
    """Stops the queries at the end of the block, however it ends. Each stops between two batches, never in one."""
    try:
        yield
    finally:
        context.stop()

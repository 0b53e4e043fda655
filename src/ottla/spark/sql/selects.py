"""SELECT at a terminal: a batch over the existing records, or rows as they arrive."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ottla.spark.sql.failures import SqlError
from ottla.spark.sql.plans import Shape, shape_of
from ottla.spark.sql.running_query import Progress, RunningQuery
from ottla.spark.sql.sources import ROWS_A_BATCH, AnalyzedSelect, ReadSettings, Views
from ottla.spark.sql.spark_errors import to_sql_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation
    from pyspark.sql.streaming.query import StreamingQuery

    from ottla.spark.sql.context import Context
    from ottla.spark.sql.statements import Select

ROWS_MAX = 100_000
"""Maximum number of rows of one result on the driver."""
OBSERVED_S = 2.0
"""How long to wait, after a batch has ended, for the metrics that it observed."""
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a batch."""

    columns: tuple[str, ...]
    rows: Rows
    bad: dict[str, int]
    """The number of records that could not be parsed, by stream."""
    is_whole: bool
    """False if there are more rows than were requested."""


def select_once(context: Context, select: Select, text: str, *, limit: int | None = None) -> Result:
    """Runs a batch over the current content of the topics. Bad records are in the dead letters when it returns."""
    from pyspark.errors import PySparkException

    views = Views(context.spark(), context.servers, context.find, ReadSettings(streaming=False))
    opened = views.open(select, text)
    rows_max = ROWS_MAX if limit is None else min(limit, ROWS_MAX)
    try:
        found = opened.rows.limit(rows_max + 1).collect()
    except PySparkException as failure:
        refusal = to_sql_error(failure, text)
        if refusal.position is None:
            raise
        raise refusal from None
    bad = {name: _counted(each) for name, each in opened.observations.items()}
    _write_dead_letters(context, opened, bad)
    rows = [tuple(row) for row in found[:rows_max]]
    return Result(tuple(opened.rows.columns), rows, bad, len(found) <= rows_max)


def _counted(observation: Observation) -> int:
    """Returns the observed count, or 0 if Spark did not need to read the topic at all.

    In that case `Observation.get` would wait forever, or fail with a row that has no columns.
    """
    counted = cast("Any", observation)._jo
    future = counted.future()
    end_s = time.monotonic() + OBSERVED_S
    while not future.isCompleted() and time.monotonic() < end_s:
        time.sleep(0.01)
    row = counted.getRow() if future.isCompleted() else None
    return int(row.getLong(0)) if row is not None and row.length() and not row.isNullAt(0) else 0


def _write_dead_letters(context: Context, opened: AnalyzedSelect, bad: dict[str, int]) -> None:
    for definition in opened.sources.values():
        if bad.get(definition.name):
            letters = context.start_dead_letters(definition, once=True)
            if letters is not None:
                letters.wait()
                letters.stop()
                context.running.pop(letters.name, None)


@dataclass(slots=True)
class LiveSelect:
    """A running SELECT."""

    context: Context
    opened: AnalyzedSelect
    running: RunningQuery

    def poll(self) -> list[Progress]:
        """Returns the progress of the query, and starts the search for dead letters if there are some.

        Raises the error with which the query failed.
        """
        self.running.poll()
        news = self.running.news()
        for definition in self.opened.sources.values():
            if self.running.bad[definition.name]:
                self.context.start_dead_letters(definition)
        return news


OnRows = Callable[[Sequence[str], Rows, str, Shape], None]
"""Called as `on_rows(columns, rows, mode, shape)` for each batch, from a thread of Spark."""


def select_live(context: Context, select: Select, text: str, on_rows: OnRows, *, start: str, every: str) -> LiveSelect:
    """Starts a SELECT whose rows are passed to `on_rows`. Raises SqlError with the position of what Spark rejects."""
    from pyspark.errors import AnalysisException

    opened, shape = _open_live(context, select, text, start)
    mode = shape.live_mode
    columns = tuple(opened.rows.columns)

    def take(batch: DataFrame, number: int) -> None:
        found = [tuple(row) for row in batch.limit(ROWS_MAX).collect()]
        if found or mode == "complete":
            on_rows(columns, found, mode, shape)

    def begin() -> StreamingQuery:
        writer = opened.rows.writeStream.outputMode(mode).foreachBatch(take)
        return writer.trigger(processingTime=every).start()

    running = RunningQuery("select", begin)
    try:
        running.begin()
    except AnalysisException as failure:
        raise to_sql_error(failure, text) from None
    return LiveSelect(context, opened, running)


def _open_live(context: Context, select: Select, text: str, start: str) -> tuple[AnalyzedSelect, Shape]:
    """Opens a SELECT as a stream.

    Plain rows are read in batches of bounded size. Groups are computed over everything available at once, so that no
    row is late merely because one partition is read before another.
    """

    find = functools.cache(context.find)  # infer columns only once

    def open_with(offsets_max: int | None) -> AnalyzedSelect:
        reading = ReadSettings(streaming=True, start=start, offsets_max=offsets_max)
        return Views(context.spark(), context.servers, find, reading).open(select, text)

    opened = open_with(None)
    if not opened.sources:
        raise SqlError("this SELECT reads no topic; --once runs it")
    shape = shape_of(opened.rows)
    return (opened, shape) if shape.is_grouped else (open_with(ROWS_A_BATCH), shape)

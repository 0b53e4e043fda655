"""Runs each function of a pipeline file as a query."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.spark.pipeline_file import Pipeline, PipelineFileError, Step, placed
from ottla.spark.sql import brokers
from ottla.spark.sql.decode import count_bad, good_rows, parse_records
from ottla.spark.sql.definitions import RECORD_COLUMNS, Definition, QueryDefinition, default_event_time
from ottla.spark.sql.failures import SqlError
from ottla.spark.sql.plans import check_mode, shape_of
from ottla.spark.sql.queries import launch, result_columns
from ottla.spark.sql.sources import BAD, ReadSettings, metric_name, read_records
from ottla.spark.sql.spark_errors import keep_quiet, sentence_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ottla.spark.sql.context import Context
    from ottla.spark.sql.running_query import RunningQuery


def run_pipeline(
    context: Context,
    pipeline: Pipeline,
    path: Path,
    *,
    only: Sequence[str] = (),
    on_start: Callable[[RunningQuery], None] = lambda _: None,
) -> None:
    """Starts all functions, writers of a topic before its readers. Raises PipelineFileError for errors in the file.

    If everything is to run once, each query ends before the next begins.
    """
    keep_quiet()
    known: dict[str, Definition] = dict(pipeline.topics)
    for step in pipeline.in_order(only):
        query, rows, sources = _prepare(context, step, known, path)
        known.setdefault(step.writes, query.target)
        on_start(_launch(context, step, query, rows, sources))


def _prepare(
    context: Context, step: Step, known: dict[str, Definition], path: Path
) -> tuple[QueryDefinition, DataFrame, list[Definition]]:
    before = context.catalog.query(step.name)
    if before is not None and before.normal != step.normal:
        raise PipelineFileError(
            f"the checkpoint {step.name} in {context.catalog.directory} belongs to another function:\n  "
            f"{before.normal}\nChoose another name, or another checkpoint directory"
        )
    sources = [_source(context, step, topic, known, before) for topic in step.reads]
    frames = [_frame(context, source) for source in sources]
    try:
        rows = step.function(*frames)
    except Exception as failure:
        raise placed(failure, path) from failure
    rows = _checked(step, rows)
    target = _target(step, rows, known.get(step.writes))
    _check_mode(step, rows)
    if before is None:
        named = {each.topic: each for each in sources}
        before = QueryDefinition(step.name, target, step.normal, "", uuid.uuid4().hex, named)
        context.catalog.add_query(before)
    _create_topic(context, step)
    return replace(before, target=target), rows, sources


def _source(
    context: Context, step: Step, topic: str, known: dict[str, Definition], before: QueryDefinition | None
) -> Definition:
    """Returns the definition of a topic: declared, written by a function of this file, or inferred. An inferred
    definition is kept."""
    if topic in known:
        if topic not in brokers.topic_sizes(context.servers):
            raise PipelineFileError(f"{step.name} reads the topic {topic}, which does not exist")
        return known[topic]
    if before is not None and topic in before.sources:
        return before.sources[topic]
    try:
        return context.find(topic)
    except SqlError as mistake:
        advice = f'pipeline.topic("{topic}", schema="...")'
        raise PipelineFileError(f"{step.name} reads {topic}: {mistake.sentence.partition(';')[0]}; {advice}") from None


def _frame(context: Context, source: Definition) -> DataFrame:
    records = read_records(context.spark(), context.servers, source.topic, ReadSettings(streaming=True))
    parsed = parse_records(records, source).observe(metric_name(source.name), count_bad().alias(BAD))
    rows = good_rows(parsed, source, RECORD_COLUMNS)
    return rows.withWatermark(source.event_time or "_timestamp", source.delay)


def _checked(step: Step, rows: object) -> DataFrame:
    from pyspark.sql import DataFrame

    if not isinstance(rows, DataFrame):
        raise PipelineFileError(f"{step.name} returns {type(rows).__name__}, not a DataFrame")
    if not rows.isStreaming:
        raise PipelineFileError(f"{step.name} returns a DataFrame that is not a stream; derive it from the arguments")
    own = [name for name in rows.columns if name.lower() in RECORD_COLUMNS]
    return rows.drop(*own)


def _check_mode(step: Step, rows: DataFrame) -> None:
    from pyspark.errors import AnalysisException

    try:
        check_mode(rows, "update" if step.is_table else "append")
    except AnalysisException as failure:
        raise PipelineFileError(f"{step.name}: {sentence_of(failure)}") from failure


def _target(step: Step, rows: DataFrame, declared: Definition | None) -> Definition:
    if not rows.columns:
        raise PipelineFileError(f"{step.name} returns no columns")
    if step.key is not None and step.key.lower() not in {name.lower() for name in rows.columns}:
        raise PipelineFileError(f"{step.name} has no column {step.key} for the key; it has {', '.join(rows.columns)}")
    if step.format != "json" and len(rows.columns) != 1:
        raise PipelineFileError(
            f'{step.name}: format="{step.format}" needs exactly one column, not {", ".join(rows.columns)}'
        )
    keys: tuple[str, ...] = () if step.key is None else (step.key,)
    if step.is_table:
        shape = shape_of(rows)
        if not shape.keys:
            missing = f"; {', '.join(shape.missing)} is missing" if shape.missing else ""
            raise PipelineFileError(
                f"the table {step.name} must be grouped and contain the columns that it is grouped by{missing}"
            )
        keys = shape.keys
    columns = result_columns(rows)
    return Definition(
        name=step.writes,
        topic=step.writes,
        format=step.format,
        columns=columns,
        event_time=default_event_time(columns),
        key=keys,
        dead_letters=None if declared is None else declared.dead_letters,
        is_table=step.is_table,
    )


def _create_topic(context: Context, step: Step) -> None:
    configs = {"cleanup.policy": "compact"} if step.is_table else {}
    if brokers.create_topic(context.servers, step.writes, partitions=step.partitions, configs=configs):
        context.tell(f"created topic {step.writes}" + (", compacted" if step.is_table else ""))


def _launch(
    context: Context, step: Step, query: QueryDefinition, rows: DataFrame, sources: list[Definition]
) -> RunningQuery:
    try:
        return launch(context, query, rows, sources)
    except SqlError as mistake:
        raise PipelineFileError(f"{step.name}: {mistake.sentence}") from None

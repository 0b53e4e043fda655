"""CREATE ... AS SELECT and INSERT INTO: queries with a name, a definition and a checkpoint, which can be resumed."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.spark.sql import brokers
from ottla.spark.sql.definitions import (
    DELAY,
    Definition,
    QueryDefinition,
    check_delay,
    check_query_name,
    dead_letters_of,
    default_event_time,
    one_of,
)
from ottla.spark.sql.failures import SqlError
from ottla.spark.sql.plans import Shape, check_mode, shape_of
from ottla.spark.sql.query_output import QueryOutput, as_records, check_single, fitted, start_appends, start_upserts
from ottla.spark.sql.running_query import RunningQuery
from ottla.spark.sql.sources import AnalyzedSelect, ReadSettings, Views
from ottla.spark.sql.spark_errors import to_sql_error
from ottla.spark.sql.statements import Column, CreateAs, Insert

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from ottla.spark.sql.context import Context

WRITTEN_FORMATS = ("json", "string", "bytes")
_NO_END = "an unbounded stream supports no ORDER BY and no LIMIT"


def start_create(context: Context, statement: CreateAs, text: str) -> RunningQuery:
    """Creates the stream or table, or resumes its query. Raises SqlError with the position of the error."""
    check_query_name(statement.name, text, statement.position)
    partitions = statement.options.get("partitions")
    if partitions is not None and (not partitions.isdigit() or int(partitions) < 1):
        raise SqlError("partitions must be a number of at least 1", text, statement.options.positions["partitions"])
    known = _known(context, statement.name, statement.normal, text, statement.position)
    if known is None and (taken := context.catalog.stream(statement.name)) is not None:
        raise SqlError(f"{taken.name} is already declared; DROP STREAM {taken.name} first", text, statement.position)
    opened = _open(context, statement, text, known)
    shape = shape_of(opened.rows)
    _check_shape(statement, shape, text)
    _check_mode(opened.rows, "update" if statement.is_table else "append", text, statement.position)
    if known is None:
        target = _target(statement, opened, shape, text)
        known = _query(statement.name, target, statement, opened)
        _create_topic(context, statement, target)
        context.catalog.add_query(known)
    context.catalog.add_stream(known.target)
    return _start(context, known, opened, text, statement.position)


def start_insert(context: Context, statement: Insert, text: str) -> RunningQuery:
    """Starts the query of an INSERT INTO, or resumes it. Raises SqlError with the position of the error."""
    name = statement.options.get("name") or f"insert-into-{statement.into}"
    check_query_name(name, text, statement.options.positions.get("name", statement.position))
    known = _known(context, name, statement.normal, text, statement.position)
    opened = _open(context, statement, text, known)
    if known is None:
        target = _insert_target(context, statement, opened, text)
        known = _query(name, target, statement, opened)
    if shape_of(opened.rows).is_cut:
        raise SqlError(_NO_END, text, statement.position)
    _check_mode(opened.rows, "append", text, statement.position)
    try:
        opened.rows = fitted(opened.rows, known.target) if known.target.is_declared else opened.rows
        check_single(opened.rows, known.target.format)
    except SqlError as mistake:
        raise SqlError(mistake.sentence, text, statement.position) from None
    context.catalog.add_query(known)
    return _start(context, known, opened, text, statement.position)


def _query(name: str, target: Definition, statement: CreateAs | Insert, opened: AnalyzedSelect) -> QueryDefinition:
    return QueryDefinition(name, target, statement.normal, statement.source, uuid.uuid4().hex, opened.sources)


def _known(context: Context, name: str, normal: str, text: str, position: int) -> QueryDefinition | None:
    known = context.catalog.query(name)
    if known is not None and known.normal != normal:
        what = "QUERY" if known.normal.upper().startswith("INSERT") else "TABLE" if known.target.is_table else "STREAM"
        raise SqlError(
            f"the query {known.name} already exists with another statement, which its checkpoint belongs to:\n "
            f" {known.source}\nResume that one, choose another name, or DROP {what} {known.name} to start again",
            text,
            position,
        )
    return known


def _open(context: Context, statement: CreateAs | Insert, text: str, known: QueryDefinition | None) -> AnalyzedSelect:
    """Opens the SELECT. Columns that were inferred when the query was created are kept, because its state depends on
    them."""
    sources = {} if known is None else {name.lower(): each for name, each in known.sources.items()}

    def find(name: str) -> Definition:
        found = sources.get(name.lower())
        return found if found is not None and not found.is_declared else context.find(name)

    return Views(context.spark(), context.servers, find, ReadSettings(streaming=True)).open(statement.select, text)


def _check_shape(statement: CreateAs, shape: Shape, text: str) -> None:
    if shape.is_cut:
        raise SqlError(_NO_END, text, statement.position)
    if statement.is_table and not shape.is_grouped:
        raise SqlError(
            "a table needs a GROUP BY, because it has one row for each group; use CREATE STREAM for individual rows",
            text,
            statement.position,
        )
    if statement.is_table and not shape.keys:
        left_out = ", ".join(shape.missing) or "the grouping columns"
        raise SqlError(f"the grouping columns are the key of a table: select {left_out} too", text, statement.position)


def _check_mode(rows: DataFrame, mode: str, text: str, position: int) -> None:
    """Reports what Spark would reject at the start, before anything is created."""
    from pyspark.errors import AnalysisException

    try:
        check_mode(rows, mode)
    except AnalysisException as failure:
        refusal = to_sql_error(failure, text)
        raise SqlError(refusal.sentence, text, refusal.position if refusal.position is not None else position) from None


def _target(statement: CreateAs, opened: AnalyzedSelect, shape: Shape, text: str) -> Definition:
    options, rows = statement.options, opened.rows
    names = [name.lower() for name in rows.columns]
    twice = next((name for name in rows.columns if names.count(name.lower()) > 1), None)
    if twice is not None:
        raise SqlError(f"there are two columns {twice}; use AS to name one", text, statement.position)
    columns = result_columns(rows)
    key = options.get("key")
    if key is not None and (statement.is_table or key.lower() not in names):
        why = (
            "of a table always consists of the grouping columns"
            if statement.is_table
            else f"{key} is not one of the columns"
        )
        raise SqlError(f"the key {why}", text, options.positions["key"])
    made = Definition(
        name=statement.name,
        topic=options.get("topic") or statement.name,
        format=one_of(options, "format", WRITTEN_FORMATS, text),
        columns=columns,
        delay=options.get("watermark") or DELAY,
        key=shape.keys if statement.is_table else () if key is None else (key,),
        dead_letters=dead_letters_of(statement.name, options.get("dead_letters")),
        is_table=statement.is_table,
        query=statement.name,
        statement=statement.normal,
    )
    check_delay(made.delay, text, options.positions.get("watermark", 0))
    time = options.get("timestamp")
    if time is not None and made.column(time) is None:
        raise SqlError(f"the event time {time} is not one of the columns", text, options.positions["timestamp"])
    try:
        check_single(rows, made.format)
    except SqlError as mistake:
        raise SqlError(mistake.sentence, text, options.positions.get("format", statement.position)) from None
    return replace(made, event_time=time or default_event_time(columns))


def result_columns(rows: DataFrame) -> tuple[Column, ...]:
    """Returns the columns of a result. Names inside of types keep their case."""
    kinds = [(each.name, each.dataType.simpleString().replace("void", "string")) for each in rows.schema.fields]
    return tuple(Column(name, kind if "<" in kind else kind.upper()) for name, kind in kinds)


def _insert_target(context: Context, statement: Insert, opened: AnalyzedSelect, text: str) -> Definition:
    declared = context.catalog.stream(statement.into)
    options, key = statement.options, statement.options.get("key")
    if declared is not None and declared.query is not None:
        raise SqlError(f"{declared.name} is filled by its own query", text, statement.position)
    topic = statement.into if declared is None else declared.topic
    if topic not in brokers.topic_sizes(context.servers):
        raise SqlError(
            f"there is no topic {topic}; create it with `ottla topics create {topic}` or CREATE STREAM ... AS SELECT",
            text,
            statement.position,
        )
    names = [
        name.lower() for name in (opened.rows.columns if declared is None else (each.name for each in declared.columns))
    ]
    if key is not None and key.lower() not in names:
        raise SqlError(f"the key {key} is not one of the columns", text, options.positions["key"])
    keys = () if key is None else (key,)
    if declared is not None:
        if options.get("format") is not None:
            raise SqlError(f"the format of {declared.name} is already declared", text, options.positions["format"])
        return replace(declared, key=keys or declared.key)
    format_ = one_of(options, "format", WRITTEN_FORMATS, text)
    return Definition(statement.into, topic, format_, (), key=keys, is_declared=False)


def _create_topic(context: Context, statement: CreateAs, target: Definition) -> None:
    partitions = statement.options.get("partitions")
    configs = {"cleanup.policy": "compact"} if target.is_table else {}
    count = -1 if partitions is None else int(partitions)
    if brokers.create_topic(context.servers, target.topic, partitions=count, configs=configs):
        context.tell(f"created topic {target.topic}" + (", compacted" if target.is_table else ""))


def _start(context: Context, query: QueryDefinition, opened: AnalyzedSelect, text: str, position: int) -> RunningQuery:
    try:
        return launch(context, query, opened.rows, opened.sources.values())
    except SqlError as mistake:
        raise SqlError(mistake.sentence, text, position) from None


def launch(context: Context, query: QueryDefinition, rows: DataFrame, sources: Iterable[Definition]) -> RunningQuery:
    """Starts the query. If everything is to run once, the query has ended when this returns.

    The search for bad records runs if the query has met some, or if its last run may have. A search is recorded as
    outstanding before a run starts. It is settled when the run has processed everything and the search is done.

    Raises SqlError without a position if another process runs the query. Errors of Spark are not converted.
    """
    known = context.running.get(query.name)
    if known is not None:
        if known.poll():
            return known
        known.stop()
    locks = contextlib.ExitStack()
    if not locks.enter_context(context.catalog.running("query", query.name)):
        locks.close()
        raise SqlError(f"another process is running the query {query.name}")
    target = query.target
    writing = QueryOutput(
        context.servers, target.topic, query.name, context.catalog.checkpoint(query.name), context.every
    )

    def begin() -> StreamingQuery:
        if target.is_table:
            return start_upserts(rows, target, writing, query.run_id)
        return start_appends(as_records(rows, target), writing)

    started = RunningQuery(query.name, begin, locks)
    searched = [each for each in sources if each.dead_letters is not None]
    owed = [each for each in searched if context.catalog.owes(query.name, each.name)]
    for source in searched:
        context.catalog.owe(query.name, source.name)
    try:
        started.begin()
    except BaseException:
        locks.close()
        raise
    context.running[query.name] = started
    context.sources[query.name] = {each.name: each for each in searched}
    if context.every is None:
        started.wait()
        started.news()
    for source in searched:
        is_needed = source in owed or started.bad[source.name] > 0
        letters = context.start_dead_letters(source) if is_needed else None
        if context.every is not None:
            continue
        if letters is not None:
            letters.wait()
        if letters is not None or not is_needed:
            context.catalog.settle(query.name, source.name)
    return started

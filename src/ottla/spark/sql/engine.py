"""Runs all statements except SELECT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.spark.sql import brokers
from ottla.spark.sql.definitions import Definition, check_query_name, declared
from ottla.spark.sql.failures import SqlError
from ottla.spark.sql.parser import parse
from ottla.spark.sql.queries import start_create, start_insert
from ottla.spark.sql.sources import columns_of
from ottla.spark.sql.statements import (
    CreateAs,
    CreateStream,
    Describe,
    Drop,
    Insert,
    Resume,
    Show,
)
from ottla.spark.sql.types import is_type

if TYPE_CHECKING:
    from ottla.spark.sql.context import Context
    from ottla.spark.sql.running_query import RunningQuery


@dataclass(frozen=True, slots=True)
class Listing:
    """A table to print."""

    headings: tuple[str, ...]
    rows: list[tuple[object, ...]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A statement that was carried out."""

    sentence: str


@dataclass(frozen=True, slots=True)
class StartedQueries:
    """Queries that were started."""

    queries: tuple[RunningQuery, ...]


Outcome = Listing | Confirmation | StartedQueries
Plain = CreateStream | CreateAs | Insert | Show | Describe | Drop | Resume


def execute(context: Context, statement: Plain, text: str) -> Outcome:
    """Runs a statement. Raises SqlError with the position of the error."""
    if isinstance(statement, CreateStream):
        return _declare(context, statement, text)
    if isinstance(statement, CreateAs):
        if statement.if_not_exists and context.catalog.stream(statement.name) is not None:
            known = context.catalog.query(statement.name)
            if known is None or known.normal != statement.normal:
                return Confirmation(f"{statement.name} already exists")
        return StartedQueries((start_create(context, statement, text),))
    if isinstance(statement, Insert):
        return StartedQueries((start_insert(context, statement, text),))
    if isinstance(statement, Show):
        return _show(context, statement)
    if isinstance(statement, Describe):
        return _describe(context, statement, text)
    if isinstance(statement, Drop):
        return _drop(context, statement, text)
    return _resume(context, statement, text)


def _declare(context: Context, statement: CreateStream, text: str) -> Confirmation:
    check_query_name(statement.name, text, statement.position)
    for column in statement.columns:
        if not is_type(column.type):
            raise SqlError(f"{column.type} is not a type", text, column.position)
    made = declared(statement, text, lambda path: Path(path).expanduser().read_text(encoding="utf-8"))
    known = context.catalog.stream(statement.name)
    if known is not None:
        return _declared_before(known, made, statement, text)
    if made.topic not in brokers.topic_sizes(context.servers):
        where = statement.options.positions["topic"]
        raise SqlError(
            f"there is no topic {made.topic}; create it with `ottla topics create {made.topic}`", text, where
        )
    context.catalog.add_stream(made)
    return Confirmation(f"declared stream {made.name}: topic {made.topic}, {made.format}, {len(made.columns)} columns")


def _declared_before(known: Definition, made: Definition, statement: CreateStream, text: str) -> Confirmation:
    """Accepts the same statement, with the same content if the schema is in a file."""
    if known == made:
        return Confirmation(f"stream {known.name} is already declared in the same way")
    if statement.if_not_exists:
        return Confirmation(f"{known.name} already exists")
    raise SqlError(
        f"{known.name} already exists with another definition:\n  {known.statement}\n"
        f"DROP {'TABLE' if known.is_table else 'STREAM'} {known.name} first",
        text,
        statement.position,
    )


def _show(context: Context, statement: Show) -> Listing:
    if statement.what == "TOPICS":
        sizes = brokers.topic_sizes(context.servers)
        named = {each.topic: each.name for each in context.catalog.streams()}
        return Listing(
            ("topic", "partitions", "stream"), [(name, count, named.get(name, "")) for name, count in sizes.items()]
        )
    if statement.what == "QUERIES":
        rows: list[tuple[object, ...]] = []
        for query in context.catalog.queries():
            running = context.running.get(query.name)
            state = "running" if running is not None and running.query is not None and running.query.isActive else ""
            rows.append((query.name, query.target.topic, state, query.normal))
        return Listing(("query", "into", "state", "statement"), rows)
    wanted = [each for each in context.catalog.streams() if each.is_table == (statement.what == "TABLES")]
    return Listing(
        (statement.what[:-1].lower(), "topic", "format", "columns", "event time", "filled by"),
        [
            (
                each.name,
                each.topic,
                each.format,
                ", ".join(column.name for column in each.columns),
                each.event_time or "",
                "its query" if each.query else "",
            )
            for each in wanted
        ],
    )


def _describe(context: Context, statement: Describe, text: str) -> Listing:
    known = context.catalog.stream(statement.name)
    try:
        definition = known or context.find(statement.name)
    except SqlError as mistake:
        raise SqlError(mistake.sentence, text, statement.position) from None
    rows: list[tuple[object, ...]] = [
        (column.name, column.type, _remark(definition, column.name)) for column in columns_of(definition)
    ]
    notes = [f"topic {definition.topic}, format {definition.format}"]
    if not definition.is_declared:
        notes.append(f"columns inferred from the last values; CREATE STREAM {definition.name} (...) declares them")
    notes.append(
        f"bad records go to {definition.dead_letters}" if definition.dead_letters else "bad records are skipped"
    )
    if definition.query is not None:
        notes.append(f"filled by: {definition.statement}")
    return Listing(("column", "type", ""), rows, tuple(notes))


def _remark(definition: Definition, name: str) -> str:
    found = []
    if name == definition.event_time:
        found.append(f"event time, watermark {definition.delay}")
    if name.lower() in {each.lower() for each in definition.key}:
        found.append("key")
    return "; ".join(found)


def _drop(context: Context, statement: Drop, text: str) -> Confirmation:
    name, kind = statement.name, statement.kind
    stream, query = context.catalog.stream(name), context.catalog.query(name)
    if kind == "QUERY":
        if query is not None and query.target.query == query.name:
            what = "TABLE" if query.target.is_table else "STREAM"
            raise SqlError(f"this query fills {name}: DROP {what} {name}", text, statement.position)
        found: object = query
    else:
        found = stream
        if stream is not None and stream.is_table != (kind == "TABLE"):
            what = "table" if stream.is_table else "stream"
            raise SqlError(f"{name} is a {what}: DROP {what.upper()} {name}", text, statement.position)
    if found is None:
        if statement.if_exists:
            return Confirmation(f"there is no {kind.lower()} {name}")
        raise SqlError(f"there is no {kind.lower()} {name}", text, statement.position)
    for each in (query.name if query is not None else None, stream.dead_letters if stream is not None else None):
        running = context.running.pop(each, None) if each is not None else None
        if running is not None:
            running.stop()
    with context.catalog.running("query", name) as is_free:
        if not is_free:
            raise SqlError(f"another process is running the query {name}; stop it first", text, statement.position)
        if query is not None:
            context.catalog.drop_query(name)
        if kind != "QUERY":
            context.catalog.drop_stream(name)
    topic = query.target.topic if query is not None else stream.topic if stream is not None else ""
    return Confirmation(f"dropped {kind.lower()} {name}; the topic {topic} is unchanged")


def _resume(context: Context, statement: Resume, text: str) -> StartedQueries:
    known = context.catalog.queries()
    if statement.name is not None:
        known = [each for each in known if each.name.lower() == (statement.name or "").lower()]
        if not known:
            raise SqlError(f"there is no query {statement.name}; SHOW QUERIES lists all", text, statement.position)
    started: Sequence[RunningQuery] = []
    for query in known:
        (made,) = parse(query.source)
        if isinstance(made, CreateAs):
            started = [*started, start_create(context, made, query.source)]
        elif isinstance(made, Insert):
            started = [*started, start_insert(context, made, query.source)]
    return StartedQueries(tuple(started))

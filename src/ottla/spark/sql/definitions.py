"""The definition of a stream or table: where its records are and what they contain. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ottla.spark.sql.avro_schema import avro_columns
from ottla.spark.sql.failures import SqlError
from ottla.spark.sql.statements import Column, CreateStream, Options

FORMATS = ("json", "avro", "string", "bytes")
FRAMINGS = ("auto", "confluent", "none")
DELAY = "10 minutes"
"""How late records may arrive by default."""
NO_DEAD_LETTERS = "none"
RECORD_COLUMNS = {
    "_key": "string",
    "_topic": "string",
    "_partition": "int",
    "_offset": "bigint",
    "_timestamp": "timestamp",
    "_headers": "array<struct<key:string,value:binary>>",
}
"""Columns of the record itself, which are available if a statement names them."""
_DELAY_TEXT = re.compile(r"\s*\d+\s+(?:millisecond|second|minute|hour|day|week)s?\s*", re.IGNORECASE)
_QUERY_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_TIME_TYPES = ("TIMESTAMP", "TIMESTAMP_LTZ")
_TIME_SOURCES = (*_TIME_TYPES, "BIGINT", "LONG", "STRING")


@dataclass(frozen=True, slots=True)
class Definition:
    """A stream or a table."""

    name: str
    topic: str
    format: str
    columns: tuple[Column, ...]
    event_time: str | None = None
    delay: str = DELAY
    key: tuple[str, ...] = ()
    """The columns that form the record's key. They are written to it, and read from it if the value lacks them."""
    dead_letters: str | None = None
    avro_schema: str | None = None
    avro_framing: str = "auto"
    is_table: bool = False
    is_declared: bool = True
    """False if the columns were inferred from samples."""
    query: str | None = None
    """The name of the query that fills it, if there is one."""
    statement: str = ""

    def column(self, name: str) -> Column | None:
        """Returns the column with this name in any case, or None."""
        return next((each for each in self.columns if each.name.lower() == name.lower()), None)

    def to_json(self) -> dict[str, Any]:
        """Returns the form in which the catalog stores it."""
        return {**asdict(self), "columns": [[each.name, each.type] for each in self.columns]}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Definition:
        """Parses the form that `to_json` returns."""
        columns = tuple(Column(name, kind) for name, kind in found["columns"])
        return cls(**{**found, "columns": columns, "key": tuple(found["key"])})


@dataclass(frozen=True, slots=True)
class QueryDefinition:
    """A query that continues after a restart, with the checkpoint of its name."""

    name: str
    target: Definition
    normal: str
    """The statement without comments and line breaks. If it changes, it is another query."""
    source: str
    """The statement as it was written."""
    run_id: str
    """Identifies the writes of this query, as opposed to a later one of the same name, so that each is applied once."""
    sources: Mapping[str, Definition] = field(default_factory=dict)
    """The definitions that it reads. Columns that were inferred when the query was created do not change later."""

    def to_json(self) -> dict[str, Any]:
        """Returns the form in which the catalog stores it, with the definitions that the query was made with."""
        sources = {name: each.to_json() for name, each in self.sources.items()}
        return {
            "name": self.name,
            "normal": self.normal,
            "source": self.source,
            "run_id": self.run_id,
            "target": self.target.to_json(),
            "sources": sources,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> QueryDefinition:
        """Parses the form that `to_json` returns."""
        sources = {name: Definition.from_json(each) for name, each in found["sources"].items()}
        return cls(**{**found, "target": Definition.from_json(found["target"]), "sources": sources})


def dead_letters_of(name: str, chosen: str | None) -> str | None:
    """Returns the dead-letter topic; None if there is none."""
    if chosen is None:
        return f"{name}-dead-letters"
    return None if chosen.strip().lower() == NO_DEAD_LETTERS else chosen.strip()


def declared(statement: CreateStream, text: str, read_file: Callable[[str], str]) -> Definition:
    """Returns the definition of a CREATE STREAM. Raises SqlError with the position of an inconsistency."""
    options = statement.options
    if options.get("topic") is None:
        raise SqlError("the topic of the stream is missing: WITH (topic = '...')", text, statement.position)
    format_ = one_of(options, "format", FORMATS, text)
    schema = _avro_schema(statement, format_, text, read_file)
    columns = _columns(statement, format_, schema, text)
    made = Definition(
        name=statement.name,
        topic=options.values["topic"],
        format=format_,
        columns=columns,
        dead_letters=dead_letters_of(statement.name, options.get("dead_letters")),
        avro_schema=schema,
        avro_framing=one_of(options, "avro_framing", FRAMINGS, text),
        statement=statement.normal,
    )
    key = options.get("key")
    if key is not None and made.column(key) is None:
        raise SqlError(f"the key {key} is not one of the columns", text, options.positions["key"])
    column, delay = _event_time(made, statement, text)
    return _with(made, event_time=column, delay=delay, key=() if key is None else (key,))


def _with(made: Definition, **changes: Any) -> Definition:
    from dataclasses import replace

    return replace(made, **changes)


def one_of(options: Options, name: str, allowed: tuple[str, ...], text: str) -> str:
    """Returns the value of an option. The first allowed value is the default."""
    chosen = (options.get(name) or allowed[0]).lower()
    if chosen not in allowed:
        raise SqlError(f"{name} must be one of {', '.join(allowed)}", text, options.positions.get(name, 0))
    return chosen


def _avro_schema(statement: CreateStream, format_: str, text: str, read_file: Callable[[str], str]) -> str | None:
    options = statement.options
    given = [name for name in ("avro_schema", "avro_schema_file") if options.get(name) is not None]
    if format_ != "avro":
        if given:
            raise SqlError(f"{given[0]} needs format = 'avro'", text, options.positions[given[0]])
        return None
    if len(given) != 1:
        raise SqlError("format 'avro' needs avro_schema = '...' or avro_schema_file = '...'", text, statement.position)
    if given == ["avro_schema"]:
        return options.values["avro_schema"]
    path = options.values["avro_schema_file"]
    try:
        return read_file(path)
    except (OSError, UnicodeDecodeError) as failure:
        reason = getattr(failure, "strerror", None) or "not a text file"
        raise SqlError(f"{path} cannot be read: {reason}", text, options.positions["avro_schema_file"]) from None


def _columns(statement: CreateStream, format_: str, schema: str | None, text: str) -> tuple[Column, ...]:
    columns = statement.columns
    if schema is not None:
        if columns:
            raise SqlError("the columns of format 'avro' come from its schema", text, columns[0].position)
        try:
            return avro_columns(schema)
        except SqlError as mistake:
            named = "avro_schema" if statement.options.get("avro_schema") is not None else "avro_schema_file"
            raise SqlError(mistake.sentence, text, statement.options.positions[named]) from None
    if format_ == "json":
        if not columns:
            raise SqlError("columns are expected: CREATE STREAM name (column type, ...)", text, statement.position)
        taken = next((each for each in columns if each.name.lower() in RECORD_COLUMNS), None)
        if taken is not None:
            raise SqlError(
                f"{taken.name} is the name of a column that every record has; choose another", text, taken.position
            )
        return columns
    kind = "STRING" if format_ == "string" else "BINARY"
    if len(columns) > 1:
        raise SqlError(f"format '{format_}' allows only one column", text, columns[1].position)
    if columns and columns[0].type.upper() != kind:
        raise SqlError(f"the column of format '{format_}' must be of type {kind}", text, columns[0].position)
    return columns or (Column("value", kind),)


def _event_time(made: Definition, statement: CreateStream, text: str) -> tuple[str | None, str]:
    options, clause = statement.options, statement.watermark
    named = clause.column if clause is not None else options.get("timestamp")
    delay = clause.delay if clause is not None else options.get("watermark") or DELAY
    where = statement.position if clause is not None else options.positions.get("timestamp", statement.position)
    check_delay(delay, text, options.positions.get("watermark", where))
    if named is None:
        return default_event_time(made.columns), delay
    column = made.column(named)
    if column is None:
        raise SqlError(f"the event time {named} is not one of the columns", text, where)
    if column.type.upper() not in _TIME_SOURCES:
        raise SqlError(
            f"the event time {named} must be TIMESTAMP, BIGINT (milliseconds) or STRING (ISO 8601)", text, where
        )
    return column.name, delay


def check_delay(delay: str, text: str, position: int) -> None:
    """Raises SqlError, with the position in the statement, unless this is a delay such as '30 seconds'."""
    if _DELAY_TEXT.fullmatch(delay) is None:
        raise SqlError(f"'{delay}' is not a delay; write '30 seconds', '1 minute', '2 hours'", text, position)


def default_event_time(columns: tuple[Column, ...]) -> str | None:
    """Returns the only timestamp column; None if there are none or several."""
    times = [each.name for each in columns if each.type.upper() in _TIME_TYPES]
    return times[0] if len(times) == 1 else None


def check_query_name(name: str, text: str, position: int) -> None:
    """Raises SqlError if the name is not valid as a directory and as part of a transactional id."""
    if _QUERY_NAME.fullmatch(name) is None or name.startswith("."):
        raise SqlError(
            f"{name} is not a valid query name: use at most 100 letters, digits, '.', '_' and '-'", text, position
        )

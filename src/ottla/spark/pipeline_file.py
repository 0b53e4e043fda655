"""A pipeline as a small Python file: functions from DataFrames to DataFrames, over named topics.

    from ottla.spark.pipeline_file import Pipeline

    pipeline = Pipeline()
    pipeline.topic("clicks", schema="user STRING, page STRING, ts TIMESTAMP", watermark="1 minute")

    @pipeline.stream(reads="clicks", writes="loud-clicks", key="user")
    def loud(clicks):
        return clicks.selectExpr("user", "upper(page) AS page")

    @pipeline.table(reads="clicks", writes="views")
    def views(clicks):
        return clicks.groupBy("page").count()

`ottla pipeline run FILE` runs each function as a query, with a checkpoint named after the function. A function receives
the columns of the topic's values and those of the records themselves (`_key`, `_timestamp`, ...). The rows that it
returns are written to its topic exactly once; rows of a table have the grouping columns as their key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.archive.failures import PipelineError
from ottla.spark.sql.definitions import Definition, check_query_name, declared
from ottla.spark.sql.failures import SqlError
from ottla.spark.sql.parser import parse
from ottla.spark.sql.statements import Column, CreateStream, Options
from ottla.spark.sql.types import is_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Function = TypeVar("Function", bound="Callable[..., DataFrame]")
FORMATS = ("json", "string", "bytes")


class PipelineFileError(PipelineError):
    """A pipeline file cannot be run. The message names the file and the line."""


@dataclass(frozen=True, slots=True)
class Step:
    """A decorated function."""

    name: str
    reads: tuple[str, ...]
    writes: str
    format: str
    key: str | None
    is_table: bool
    partitions: int
    function: Callable[..., Any]

    @property
    def normal(self) -> str:
        """The properties that may not change while the checkpoint is in use."""
        kind = "table" if self.is_table else "stream"
        return f"{kind} {self.name}: {', '.join(self.reads)} -> {self.writes}"


class Pipeline:
    """The topics and functions of a pipeline file."""

    def __init__(self) -> None:
        self.topics: dict[str, Definition] = {}
        self.steps: list[Step] = []

    def topic(
        self,
        name: str,
        *,
        schema: str | None = None,
        format: str = "json",  # noqa: A002 - what it is called in SQL too
        event_time: str | None = None,
        watermark: str | None = None,
        key: str | None = None,
        dead_letters: str | None = None,
        avro_schema: str | None = None,
        avro_framing: str | None = None,
    ) -> None:
        """Declares the format of a topic's values. The schema of a topic that is not declared is inferred from JSON
        samples."""
        if name in self.topics:
            raise PipelineFileError(f"the topic {name} is declared twice")
        given = {
            "topic": name,
            "format": format,
            "timestamp": event_time,
            "watermark": watermark,
            "key": key,
            "dead_letters": dead_letters,
            "avro_schema": avro_schema,
            "avro_framing": avro_framing,
        }
        options = Options({option: value for option, value in given.items() if value is not None})
        try:
            statement = CreateStream(name, _columns(schema), None, _with_positions(options), "")
            self.topics[name] = declared(statement, "", _no_file)
        except SqlError as mistake:
            raise PipelineFileError(f"topic {name}: {mistake.sentence}") from None

    def stream(
        self,
        *,
        reads: str | Sequence[str],
        writes: str,
        format: str = "json",  # noqa: A002 - what it is called in SQL too
        key: str | None = None,
        partitions: int = -1,
    ) -> Callable[[Function], Function]:
        """Registers a function whose rows are written as they arrive, or groups when they are final.

        `key` is the column with the records' key.
        """
        return self._step(reads, writes, format, key, is_table=False, partitions=partitions)

    def table(
        self,
        *,
        reads: str | Sequence[str],
        writes: str,
        format: str = "json",  # noqa: A002 - what it is called in SQL too
        partitions: int = -1,
    ) -> Callable[[Function], Function]:
        """Registers a function whose groups are written as they change, to a compacted topic."""
        return self._step(reads, writes, format, None, is_table=True, partitions=partitions)

    def _step(
        self, reads: str | Sequence[str], writes: str, format_: str, key: str | None, *, is_table: bool, partitions: int
    ) -> Callable[[Function], Function]:
        if format_ not in FORMATS:
            raise PipelineFileError(f'format="{format_}" is not supported; choose one of {", ".join(FORMATS)}')

        def register(function: Function) -> Function:
            name = getattr(function, "__name__", "")
            if any(each.name == name for each in self.steps):
                raise PipelineFileError(f"there are two functions {name}; each needs its own name and checkpoint")
            try:
                check_query_name(name, "", 0)
            except SqlError as mistake:
                raise PipelineFileError(mistake.sentence) from None
            topics = (reads,) if isinstance(reads, str) else tuple(reads)
            if not topics:
                raise PipelineFileError(f"{name} reads nothing")
            self.steps.append(Step(name, topics, writes, format_, key, is_table, partitions, function))
            return function

        return register

    def in_order(self, only: Sequence[str] = ()) -> list[Step]:
        """Returns the steps in topological order: writers of a topic before its readers."""
        unknown = [name for name in only if name not in {each.name for each in self.steps}]
        if unknown:
            there = ", ".join(each.name for each in self.steps)
            raise PipelineFileError(f"there is no function {unknown[0]}; there are {there}")
        left = [each for each in self.steps if not only or each.name in only]
        ordered: list[Step] = []
        while left:
            written = {each.writes for each in left}
            ready = [each for each in left if not written & set(each.reads)]
            if not ready:
                names = ", ".join(each.name for each in left)
                raise PipelineFileError(f"these functions form a cycle: {names}")
            ordered += ready
            left = [each for each in left if each not in ready]
        return ordered


def load_pipeline(path: Path) -> Pipeline:
    """Runs the file and returns its pipeline. Raises PipelineFileError with the position of the error."""
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise PipelineFileError(f"{path} cannot be read: {getattr(failure, 'strerror', None) or failure}") from None
    names: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    try:
        exec(compile(source, str(path), "exec"), names)
    except SyntaxError as mistake:
        raise PipelineFileError(f"{path}, line {mistake.lineno}: {mistake.msg}") from None
    except Exception as failure:
        raise placed(failure, path) from failure
    found = [each for each in names.values() if isinstance(each, Pipeline)]
    if len(found) != 1:
        raise PipelineFileError(f"{path} must have exactly one Pipeline(), not {len(found)}")
    if not found[0].steps:
        raise PipelineFileError(f"{path} has no function with @pipeline.stream(...) or @pipeline.table(...)")
    return found[0]


def placed(failure: BaseException, path: Path) -> PipelineFileError:
    """Returns an error with the position in the file: the innermost line of the file in the traceback."""
    line, function, trace = 0, "", failure.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == str(path):
            line, function = trace.tb_lineno, code.co_name
        trace = trace.tb_next
    where = f"{path}, line {line}" + (f", in {function}" if function not in ("", "<module>") else "")
    said = str(failure) if isinstance(failure, PipelineError) else f"{type(failure).__name__}: {_first_words(failure)}"
    return PipelineFileError(f"{where}: {said}")


def _first_words(failure: BaseException) -> str:
    from ottla.spark.sql.spark_errors import plain_message

    return plain_message(str(failure)) or "no reason is given"


def _columns(schema: str | None) -> tuple[Column, ...]:
    """Parses a schema such as `user STRING, ts TIMESTAMP`."""
    if schema is None:
        return ()
    (statement,) = parse(f"CREATE STREAM x ({schema}) WITH (topic = 'x')")
    if not isinstance(statement, CreateStream):
        raise SqlError(f"{schema} is not a list of columns")
    for column in statement.columns:
        if not is_type(column.type):
            raise SqlError(f"{column.type} is not a type")
    return statement.columns


def _with_positions(options: Options) -> Options:
    return Options(options.values, dict.fromkeys(options.values, 0))


def _no_file(path: str) -> str:
    raise FileNotFoundError(path)

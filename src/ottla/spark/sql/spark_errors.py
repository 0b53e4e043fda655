"""Translates Spark's errors, with their positions in the statement."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ottla.spark.sql.failures import SqlError

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

_PLACE = re.compile(r"\(?line (\d+),? pos (\d+)\)?")
_CLASS = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_STATE = re.compile(r"\s*SQLSTATE: \w+.*$", re.DOTALL)
_NO_WATERMARK = (
    "a stream emits a group only when it is complete, so it must be grouped by window(...) of a column with a "
    "watermark; use a table (CREATE TABLE ... AS SELECT, or @pipeline.table) to get every change"
)


def keep_quiet() -> None:
    """Silences the loggers with which PySpark writes each error that it raises to stderr, as JSON with the JVM's
    stack."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def missing_relation(failure: PySparkException) -> list[str] | None:
    """Returns the parts of a name that is neither a table nor a view; None for any other error."""
    if failure.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
        return None
    named = (failure.getMessageParameters() or {}).get("relationName", "")
    return [each.replace("``", "`") for each in re.findall(r"`((?:[^`]|``)*)`", named)] or None


def to_sql_error(failure: PySparkException, text: str) -> SqlError:
    """Converts an error of Spark to one that points into the statement."""
    return SqlError(sentence_of(failure), text, position_of(failure, text))


def position_of(failure: PySparkException, text: str) -> int | None:
    """Returns the position in the statement where Spark saw the error, or None."""
    found = _PLACE.search(str(failure))
    if found is not None:
        lines = text.split("\n")
        line = min(int(found.group(1)), len(lines))
        return sum(len(each) + 1 for each in lines[: line - 1]) + int(found.group(2))
    try:
        contexts = failure.getQueryContext()
        return contexts[0].startIndex() if contexts else None
    except Exception:  # some errors have a context without a position
        return None


def sentence_of(failure: PySparkException) -> str:
    """Returns what went wrong in one sentence, without Spark's plans and traces."""
    condition, parameters = failure.getCondition() or "", failure.getMessageParameters() or {}
    if condition.startswith("UNRESOLVED_COLUMN"):
        name = parameters.get("objectName", "")
        near = parameters.get("proposal")
        return f"there is no column {_plain(name)}" + (f"; there are {_plain(near)}" if near else "")
    if condition.startswith("PARSE_SYNTAX_ERROR"):
        return f"Spark cannot parse this at {parameters.get('error', 'its end')}{parameters.get('hint', '')}"
    if condition == "UNRESOLVED_ROUTINE":
        return f"there is no function {_plain(parameters.get('routineName', ''))}"
    text = str(failure)
    if "without watermark" in text or condition.endswith("UNSUPPORTED_OUTPUT_MODE"):
        return _NO_WATERMARK
    return plain_message(text)


def plain_message(text: str) -> str:
    """Returns the first lines of a message, without its class, its SQLSTATE and the plan."""
    head = text.strip().split("\n\n")[0]
    head = _PLACE.sub("", _STATE.sub("", _CLASS.sub("", head)))
    lines = [line.strip() for line in head.splitlines() if not line.lstrip().startswith(("'", "+-", "==", "JVM"))]
    return " ".join(" ".join(lines).split()).rstrip(" ;:.")


def _plain(name: str) -> str:
    return name.replace("`", "")

"""Determines from Spark's plan whether the result of a SELECT is appended rows or changing groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_GROUPS = ("Aggregate", "Distinct", "Deduplicate")


@dataclass(frozen=True, slots=True)
class Shape:
    """The kind of a result."""

    is_grouped: bool
    is_cut: bool
    """Whether there is an ORDER BY or LIMIT, so that a change of one group may change any row."""
    keys: tuple[str, ...]
    """The columns that identify a group; empty if the SELECT omits some of them."""
    missing: tuple[str, ...]
    """The grouping expressions that are not among the columns."""

    @property
    def live_mode(self) -> str:
        """The output mode for showing changes in a terminal."""
        if not self.is_grouped:
            return "append"
        return "update" if self.keys and not self.is_cut else "complete"


def shape_of(rows: DataFrame) -> Shape:
    """Analyzes a DataFrame. `keys` refers to the last grouping."""
    plan = rows._jdf.queryExecution().analyzed()
    nodes = list(_walk(plan))
    names = [node.nodeName() for node in nodes]
    grouped = [node for node, name in zip(nodes, names, strict=True) if name in _GROUPS]
    is_cut = any(name in ("Sort", "GlobalLimit", "LocalLimit") for name in names)
    if not grouped:
        return Shape(False, is_cut, (), ())
    if grouped[0].nodeName() != "Aggregate":
        return Shape(True, is_cut, tuple(rows.columns), ())
    keys, missing = _keys(plan, grouped[0], rows.columns)
    return Shape(True, is_cut, () if missing else keys, missing)


def check_mode(rows: DataFrame, mode: str) -> None:
    """Raises AnalysisException, as at the start of a query, for operations that streams do not support in this output
    mode."""
    jvm: Any = rows.sparkSession._jvm
    chosen = {
        "append": jvm.org.apache.spark.sql.streaming.OutputMode.Append,
        "update": jvm.org.apache.spark.sql.streaming.OutputMode.Update,
        "complete": jvm.org.apache.spark.sql.streaming.OutputMode.Complete,
    }[mode]()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(rows._jdf.queryExecution().analyzed(), chosen)


def _walk(plan: Any) -> Iterator[Any]:
    """Yields the nodes of a plan depth-first, parents before children."""
    yield plan
    for child in _each(plan.children()):
        yield from _walk(child)


def _each(items: Any) -> list[Any]:
    """Converts a Scala sequence to a list."""
    return [items.apply(index) for index in range(items.size())]


def _keys(plan: Any, aggregate: Any, columns: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Traces the grouping values from the aggregate up to the columns of the result."""
    groups = _each(aggregate.groupingExpressions())
    held: dict[int, set[int]] = {}  # expression id -> the groupings that the column contains
    for output in _each(aggregate.aggregateExpressions()):
        held[output.exprId().id()] = {number for number, group in enumerate(groups) if _holds(output, group)}
    for node in reversed(_above(plan, aggregate)):
        if node.nodeName() != "Project":
            continue
        for output in _each(node.projectList()):
            inner = _inner(output)
            source = _id(inner) if _id(inner) is not None else _id(_struct_of_window(inner))
            if source is not None and source in held:
                held[output.exprId().id()] = held[source]
    keys, found = [], set[int]()
    for name, output in zip(columns, _each(plan.output()), strict=True):
        if of_this := held.get(output.exprId().id(), set()):
            keys.append(name)
            found |= of_this
    missing = tuple(_text(group) for number, group in enumerate(groups) if number not in found)
    return tuple(keys), missing


def _above(plan: Any, node: Any) -> list[Any]:
    """Returns the nodes from the top down to this one, as long as each has one child."""
    path = []
    while not plan.equals(node):
        path.append(plan)
        children = _each(plan.children())
        if len(children) != 1:
            break
        plan = children[0]
    return path


def _holds(output: Any, group: Any) -> bool:
    inner, wanted = _inner(output), _inner(group)
    return bool(inner.semanticEquals(wanted) or _struct_of_window(inner).semanticEquals(wanted))


def _inner(expression: Any) -> Any:
    return expression.child() if _kind(expression) == "Alias" else expression


def _struct_of_window(expression: Any) -> Any:
    """Returns the struct of a field: `window.start` and `window.end` identify windows as well as the whole struct."""
    return expression.child() if _kind(expression) == "GetStructField" else expression


def _id(expression: Any) -> int | None:
    return int(expression.exprId().id()) if _kind(expression) == "AttributeReference" else None


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _text(expression: Any) -> str:
    return str(expression.sql()).rpartition(".")[2].replace("`", "")

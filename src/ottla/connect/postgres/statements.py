"""Changes as SQL: runs of the same kind become one statement each. Pure, apart from asking which types columns have.

A run is made of changes that follow one another, to one table, of one kind, with different keys; so the order of what
happens to a row, and between tables, stays as it was.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import orjson
from psycopg.sql import SQL, Composed, Identifier

from ottla.connect.postgres.target_tables import TargetTable
from ottla.connect.postgres.transaction_order import Change

RUN_MAX = 2_000


class Kind(Enum):
    UPSERT = "upsert"
    PARTIAL = "partial"
    """An update that lacks values that have not changed."""
    DELETE = "delete"
    MOVE = "move"
    """A row gets another key."""
    TRUNCATE = "truncate"


@dataclass(slots=True)
class Run:
    kind: Kind
    target: TargetTable
    columns: tuple[str, ...]
    changes: list[Change]
    keys: set[bytes] = field(default_factory=set)
    others: list[TargetTable] = field(default_factory=list)
    """Tables that are emptied by the same statement."""


def runs(changes: Sequence[tuple[Change, TargetTable]]) -> Iterator[Run]:
    current: Run | None = None
    for change, target in changes:
        kind, columns = _kind(change), _columns(change)
        key = orjson.dumps(change.key)
        if current is not None and _fits(current, kind, target, columns, key):
            current.changes.append(change)
            current.keys.add(key)
            if kind is Kind.TRUNCATE and target not in (current.target, *current.others):
                current.others.append(target)
            continue
        if current is not None:
            yield current
        current = Run(kind, target, columns, [change], {key})
    if current is not None:
        yield current


def _fits(run: Run, kind: Kind, target: TargetTable, columns: tuple[str, ...], key: bytes) -> bool:
    if kind is Kind.TRUNCATE:
        return run.kind is kind
    return (
        kind in (Kind.UPSERT, Kind.DELETE)
        and run.kind is kind
        and run.target is target
        and run.columns == columns
        and key not in run.keys
        and len(run.changes) < RUN_MAX
    )


def _kind(change: Change) -> Kind:
    if change.op == "t":
        return Kind.TRUNCATE
    if change.op == "d":
        return Kind.DELETE if change.new_key is None else Kind.MOVE
    return Kind.PARTIAL if change.unchanged else Kind.UPSERT


def _columns(change: Change) -> tuple[str, ...]:
    if change.op in "dt":
        return tuple(change.key)
    return tuple(change.row)


def statement(run: Run) -> tuple[Composed, list[Any]]:
    """What to execute, with its values: as text, which PostgreSQL makes the columns' types of."""
    target = run.target
    if run.kind is Kind.TRUNCATE:
        return SQL("TRUNCATE {}").format(SQL(", ").join(each.identifier for each in (target, *run.others))), []
    if run.kind is Kind.MOVE:
        return _move(target, run.changes[0])
    if run.kind is Kind.PARTIAL:
        return _partial(target, run.changes[0])
    if run.kind is Kind.DELETE:
        return _delete(target, run)
    return _upsert(target, run)


def _upsert(target: TargetTable, run: Run) -> tuple[Composed, list[Any]]:
    names = run.columns
    columns = SQL(", ").join(map(Identifier, names))
    rest = [name for name in names if name not in target.key]
    sets = SQL(", ").join(SQL("{0} = excluded.{0}").format(Identifier(name)) for name in rest)
    action = SQL("DO UPDATE SET {}").format(sets) if rest else SQL("DO NOTHING")
    command = SQL("INSERT INTO {} ({}) SELECT {} FROM unnest({}) AS u({}) ON CONFLICT ({}) {}").format(
        target.identifier,
        columns,
        SQL(", ").join(_cast(target, name) for name in names),
        SQL(", ").join([SQL("%s::text[]")] * len(names)),
        columns,
        SQL(", ").join(map(Identifier, target.key)),
        action,
    )
    return command, [[to_text(target.types[name], each.row[name]) for each in run.changes] for name in names]


def _delete(target: TargetTable, run: Run) -> tuple[Composed, list[Any]]:
    names = run.columns
    command = SQL("DELETE FROM {} AS t USING unnest({}) AS u({}) WHERE {}").format(
        target.identifier,
        SQL(", ").join([SQL("%s::text[]")] * len(names)),
        SQL(", ").join(map(Identifier, names)),
        SQL(" AND ").join(SQL("t.{} = {}").format(Identifier(name), _cast(target, name)) for name in names),
    )
    return command, [[to_text(target.types[name], each.key[name]) for each in run.changes] for name in names]


def _partial(target: TargetTable, change: Change) -> tuple[Composed, list[Any]]:
    names = [name for name in change.row if name not in change.unchanged and name not in target.key] or list(target.key)
    return _update(target, {name: change.row[name] for name in names}, change.key)


def _move(target: TargetTable, change: Change) -> tuple[Composed, list[Any]]:
    assert change.new_key is not None
    return _update(target, change.new_key, change.key)


def _update(target: TargetTable, values: dict[str, Any], key: dict[str, Any]) -> tuple[Composed, list[Any]]:
    def assigned(name: str) -> Composed:
        return SQL("{} = %s::text::{}").format(Identifier(name), SQL(target.types[name]))

    command = SQL("UPDATE {} SET {} WHERE {}").format(
        target.identifier,
        SQL(", ").join(map(assigned, values)),
        SQL(" AND ").join(map(assigned, key)),
    )
    return command, [to_text(target.types[name], value) for name, value in [*values.items(), *key.items()]]


def _cast(target: TargetTable, name: str) -> Composed:
    return SQL("u.{}::{}").format(Identifier(name), SQL(target.types[name]))


def to_text(kind: str, value: Any) -> str | None:
    """A JSON value as the text that PostgreSQL reads."""
    if value is None:
        return None
    if isinstance(value, list):
        return _array_text(kind.removesuffix("[]"), value)
    if kind == "bytea":
        return "\\x" + base64.b64decode(value).hex()
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "t" if value else "f"
    return repr(value) if isinstance(value, float) else str(value)


def _array_text(kind: str, values: list[Any]) -> str:
    parts = []
    for value in values:
        if isinstance(value, list):
            parts.append(_array_text(kind, value))
        else:
            text = to_text(kind, value)
            parts.append("NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return "{" + ",".join(parts) + "}"

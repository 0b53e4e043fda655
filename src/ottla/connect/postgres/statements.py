"""Converts changes to SQL: each run of changes becomes one statement. Pure.

A run consists of consecutive changes of one kind to one table, with distinct keys. So the order of changes to a row,
and between tables, is preserved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import orjson

from ottla.connect.postgres.column_text import column_text, needs_cast, parameter_type, value_text
from ottla.connect.postgres.replication import quoted
from ottla.connect.postgres.target_tables import TargetTable
from ottla.connect.postgres.transaction_order import Change

RUN_MAX = 2_000
Statement = tuple[str, list[Any]]


class Kind(Enum):
    """The kinds of statements."""

    UPSERT = "upsert"
    PARTIAL = "partial"
    """An update without the values that have not changed."""
    DELETE = "delete"
    MOVE = "move"
    """An update of a row's key."""
    TRUNCATE = "truncate"


@dataclass(slots=True)
class Run:
    """Consecutive changes that one statement applies."""

    kind: Kind
    target: TargetTable
    changes: list[Change]
    keys: set[bytes | None] = field(default_factory=set)
    others: list[TargetTable] = field(default_factory=list)
    """Further tables that the same TRUNCATE empties."""


def runs(changes: Sequence[tuple[Change, TargetTable]]) -> Iterator[Run]:
    """Splits changes into runs. A schema change creates a new target, so all changes of a run have the same schema."""
    current: Run | None = None
    for change, target in changes:
        kind = _kind(change)
        if current is not None and _fits(current, kind, target, change.key):
            current.changes.append(change)
            current.keys.add(change.key)
            if kind is Kind.TRUNCATE and target is not current.target and target not in current.others:
                current.others.append(target)
            continue
        if current is not None:
            yield current
        current = Run(kind, target, [change], {change.key})
    if current is not None:
        yield current


def _fits(run: Run, kind: Kind, target: TargetTable, key: bytes | None) -> bool:
    if run.kind is not kind:
        return False
    if kind is Kind.TRUNCATE:
        return True
    is_many = kind is Kind.UPSERT or kind is Kind.DELETE
    return is_many and run.target is target and key not in run.keys and len(run.changes) < RUN_MAX


def _kind(change: Change) -> Kind:
    if change.op == "t":
        return Kind.TRUNCATE
    if change.op == "d":
        return Kind.DELETE if change.new_key is None else Kind.MOVE
    return Kind.PARTIAL if change.unchanged else Kind.UPSERT


def statement(run: Run) -> Statement:
    """Returns the statement of a run and its parameters. Raises KeyError with a column that the target does not
    have."""
    target = run.target
    if run.kind is Kind.TRUNCATE:
        return "TRUNCATE " + ", ".join(_named(each) for each in (target, *run.others)), []
    if run.kind is Kind.UPSERT:
        return _many(target, "upsert", [each.row for each in run.changes])
    if run.kind is Kind.DELETE:
        return _many(target, "delete", [orjson.loads(each.key or b"{}") for each in run.changes])
    change = run.changes[0]
    key = orjson.loads(change.key or b"{}")
    if run.kind is Kind.MOVE:
        return _update(target, orjson.loads(change.new_key or b"{}"), key)
    kept = {*change.unchanged, *target.key}
    return _update(target, {name: value for name, value in change.row.items() if name not in kept} or key, key)


def _many(target: TargetTable, what: str, rows: list[dict[str, Any]]) -> Statement:
    """Returns one statement for all rows. Its text is cached per table and column order."""
    names = tuple(rows[0])
    known = target.statements.get((what, names))
    if known is None:
        write = _upsert_text if what == "upsert" else _delete_text
        known = target.statements[what, names] = (
            write(target, names),
            [column_text(target.types[name]) for name in names],
        )
    text, encoders = known
    columns = zip(*[row.values() for row in rows], strict=True)
    return text, [encode(column) for encode, column in zip(encoders, columns, strict=True)]


def _upsert_text(target: TargetTable, names: tuple[str, ...]) -> str:
    columns = ", ".join(map(_escaped, names))
    rest = [_escaped(name) for name in names if name not in target.key]
    action = "DO UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in rest) if rest else "DO NOTHING"
    return (
        f"INSERT INTO {_named(target)} ({columns}) SELECT {', '.join(_value(target, name) for name in names)} "
        f"FROM unnest({_parameters(target, names)}) AS u({columns}) "
        f"ON CONFLICT ({', '.join(map(_escaped, target.key))}) {action}"
    )


def _delete_text(target: TargetTable, names: tuple[str, ...]) -> str:
    alike = " AND ".join(f"t.{_escaped(name)} = {_value(target, name)}" for name in names)
    columns = ", ".join(map(_escaped, names))
    return f"DELETE FROM {_named(target)} AS t USING unnest({_parameters(target, names)}) AS u({columns}) WHERE {alike}"


def _update(target: TargetTable, values: dict[str, Any], key: dict[str, Any]) -> Statement:
    def assigned(name: str) -> str:
        return f"{_escaped(name)} = %s::{target.types[name]}"

    text = f"UPDATE {_named(target)} SET {', '.join(map(assigned, values))} WHERE {' AND '.join(map(assigned, key))}"
    return text, [value_text(target.types[name], value) for name, value in [*values.items(), *key.items()]]


def _parameters(target: TargetTable, names: tuple[str, ...]) -> str:
    return ", ".join(f"%s::{parameter_type(target.types[name])}" for name in names)


def _value(target: TargetTable, name: str) -> str:
    kind = target.types[name]
    return f"u.{_escaped(name)}::{kind}" if needs_cast(kind) else f"u.{_escaped(name)}"


def _named(target: TargetTable) -> str:
    return f"{_escaped(target.schema)}.{_escaped(target.table)}"


def _escaped(name: str) -> str:
    """Quotes an identifier for a query text in which % introduces a parameter."""
    return quoted(name).replace("%", "%%")

"""Encodes a table's keys, rows and schema as JSON for the change log. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import orjson

from ottla.connect.postgres.pgoutput import UNCHANGED, Relation, Row
from ottla.connect.postgres.values import TypeInfo, encoder_of

UNAVAILABLE = b'"__debezium_unavailable_value"'


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """What the catalog knows about a column and pgoutput does not send."""

    number: int
    """The attribute number, which a rename does not change."""
    type_text: str
    missing_value: str | None
    """The value in rows that were written before the column was added."""
    type_oid: int = 0
    type_modifier: int = -1
    storage: str = "p"
    """p: always stored in the row; otherwise large values are stored out of line."""


class TableShape:
    """The columns and key of a table, with their encoders. A new one is created whenever PostgreSQL resends the
    schema."""

    def __init__(
        self,
        relation: Relation,
        key_columns: tuple[str, ...],
        types: dict[int, TypeInfo],
        facts: dict[str, ColumnFacts],
    ) -> None:
        self.relation = relation
        self.facts = facts
        self.name = f"{relation.schema}.{relation.table}"
        names = [column.name for column in relation.columns]
        # In column order: an index may order them differently, but the stream does not say how, and a row must have one
        # key.
        self.key_columns = tuple(name for name in names if name in key_columns)
        self._encoders = [encoder_of(column.type_oid, types) for column in relation.columns]
        self._labels = [orjson.dumps(name) + b":" for name in names]
        self._columns = list(zip(self._labels, self._encoders, strict=True))
        self._key_at = [names.index(name) for name in self.key_columns]
        self.schema_json = orjson.dumps(self._schema(relation, types, facts))
        self.schema_id = hashlib.blake2b(self.schema_json, digest_size=8).hexdigest()

    def _schema(self, relation: Relation, types: dict[int, TypeInfo], facts: dict[str, ColumnFacts]) -> dict[str, Any]:
        return {
            "schema": relation.schema,
            "table": relation.table,
            "key": list(self.key_columns),
            "columns": [
                {
                    "name": column.name,
                    "type": known.type_text
                    if (known := facts.get(column.name))
                    else _type_name(column.type_oid, types),
                    "number": known.number if known else None,
                    "missing": known.missing_value if known else None,
                }
                for column in relation.columns
            ],
        }

    def key_json(self, row: Row) -> bytes:
        """Encodes the key of a row."""
        columns = self._columns
        parts = []
        for at in self._key_at:
            label, encode = columns[at]
            value = row[at]
            parts.append(label + (b"null" if value is None else encode(value)))
        return b"{" + b",".join(parts) + b"}"

    def fill_key(self, row: Row, old: Row) -> None:
        """Copies unchanged large values of the key from the old row."""
        for at in self._key_at:
            if row[at] is UNCHANGED:
                row[at] = old[at]

    def row_json(self, row: Row, old: Row | None = None) -> bytes:
        """Encodes all columns. Values that an update did not change are taken from the full old row, if there is
        one."""
        if UNCHANGED in row:
            return self._row_with_gaps(row, old)
        return (
            b"{"
            + b",".join(
                [
                    label + (b"null" if value is None else encode(value))
                    for (label, encode), value in zip(self._columns, row, strict=True)
                ]
            )
            + b"}"
        )

    def _row_with_gaps(self, row: Row, old: Row | None) -> bytes:
        parts = []
        for at, (label, encode) in enumerate(self._columns):
            value = row[at]
            if value is UNCHANGED and old is not None:
                value = old[at]
            if value is UNCHANGED:
                parts.append(label + UNAVAILABLE)
            else:
                parts.append(label + (b"null" if value is None else encode(value)))
        return b"{" + b",".join(parts) + b"}"

    def gaps(self, row: Row) -> list[str]:
        """Returns the names of columns whose value is not available."""
        return [column.name for column, value in zip(self.relation.columns, row, strict=True) if value is UNCHANGED]


def _type_name(oid: int, types: dict[int, TypeInfo]) -> str:
    info = types.get(oid)
    return "text" if info is None else info.name


def key_columns_of(relation: Relation, catalog_key: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the primary key from the stream, or from the catalog if the replica identity does not tell the key."""
    if relation.identity in "di":
        return tuple(column.name for column in relation.columns if column.is_key)
    names = {column.name for column in relation.columns}
    return catalog_key if set(catalog_key) <= names else ()


def facts_then(
    relation: Relation, now: dict[str, ColumnFacts], before: dict[str, ColumnFacts]
) -> dict[str, ColumnFacts]:
    """Returns the facts about the columns of a relation as it was; the catalog may be ahead of the stream.

    A name that is no longer in the catalog was either known before or has been renamed since. Columns are ordered by
    their numbers. So if, between two known columns, the unknown names are as many as the unassigned numbers, they match
    in order.
    """
    names = [column.name for column in relation.columns]
    found = {name: facts for name in names if (facts := now.get(name) or before.get(name)) is not None}
    taken = {facts.number for facts in found.values()}
    free = sorted((facts for facts in now.values() if facts.number not in taken), key=lambda each: each.number)
    gap: list[str] = []
    last_number = 0
    for name in [*names, None]:
        if name is not None and name not in found:
            gap.append(name)
            continue
        until = found[name].number if name is not None else None
        inside = [each for each in free if each.number > last_number and (until is None or each.number < until)]
        if gap and (len(inside) == len(gap) or (until is None and len(inside) > len(gap))):
            found |= dict(zip(gap, inside, strict=False))
        gap = []
        last_number = until or last_number
    return found

"""Reads the rows of tables with COPY, as of the point at which a slot's stream begins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg
from psycopg.sql import SQL, Composed, Identifier

from ottla.connect.postgres.pgoutput import Row

_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


async def begin_snapshot(connection: psycopg.AsyncConnection[Any], name: str) -> None:
    """Begins a transaction that sees the slot's exported snapshot."""
    await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    await connection.execute(SQL("SET TRANSACTION SNAPSHOT {}").format(name))


async def read_rows(
    connection: psycopg.AsyncConnection[Any], schema: str, table: str, columns: Sequence[str]
) -> AsyncIterator[list[Row]]:
    """Yields all rows of a table, some at a time, with values in the same text form as in pgoutput."""
    rest = b""
    async with connection.cursor() as cursor, cursor.copy(_copy(schema, table, columns)) as copy:
        async for data in copy:
            lines = (rest + bytes(data)).split(b"\n")
            rest = lines.pop()
            if lines:
                yield [parse_line(line) for line in lines]


def _copy(schema: str, table: str, columns: Sequence[str]) -> Composed:
    listed = SQL(", ").join(map(Identifier, columns))
    return SQL("COPY (SELECT {} FROM ONLY {}) TO STDOUT").format(listed, Identifier(schema, table))


def parse_line(line: bytes) -> Row:
    """Parses a line of COPY's text format. Pure."""
    fields = line.split(b"\t")
    if b"\\" not in line:
        return list(fields)
    return [None if field == b"\\N" else _unescaped(field) if b"\\" in field else field for field in fields]


def _unescaped(field: bytes) -> bytes:
    first, *parts = field.split(b"\\")
    found = [first]
    at = 0
    while at < len(parts):
        part = parts[at]
        if part:
            found.append(_ESCAPES.get(part[:1], part[:1]) + part[1:])
        elif at + 1 < len(parts):  # an escaped backslash: the next part is literal text
            found.append(b"\\" + parts[at + 1])
            at += 1
        at += 1
    return b"".join(found)

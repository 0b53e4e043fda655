"""Replays a log into SQLite: row images (physical) and statements (logical).

Changes and position are committed in one transaction, so after a crash the database continues exactly where it was.
This makes statements such as `SET n = n + 1` safe; row images could also be applied twice.

    images      table; key: the primary key as a JSON array; image: all columns in table order as a JSON array
    statements  any deterministic SQL that changes rows or tables: no clock, no random()

The log is trusted as much as the database itself: whoever can write to the log can change any table.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple

from ottla.recovery.appliers import DIGEST_BYTES, FRAME_BYTES, Position, Run
from ottla.recovery.entries import Kind, Parameter, values_of
from ottla.recovery.errors import RecoveryError

_POSITION_TABLE = "ottla_position"
_CREATE = f"""CREATE TABLE IF NOT EXISTS {_POSITION_TABLE} (
    id INTEGER PRIMARY KEY CHECK (id = 0), next_offset, begin_offset, transaction_max, timestamp_ms_max)"""


_INTEGER_MAX = (1 << 63) - 1
"""The largest integer in SQLite. A larger transaction id is stored as text."""
_ROW_VERBS = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "SELECT"})
_TRANSACTION_VERBS = frozenset({"BEGIN", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE"})
_BEFORE_A_WORD = re.compile(r"(?:[\s;]|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)
_BEYOND_KEYS = """
    SELECT 1 FROM sqlite_schema WHERE type = 'trigger'
    UNION ALL SELECT 1 FROM sqlite_schema AS t, pragma_index_list(t.name) AS i
        WHERE t.type = 'table' AND i."unique" AND i.origin <> 'pk'
    UNION ALL SELECT 1 FROM sqlite_schema AS t, pragma_foreign_key_list(t.name) WHERE t.type = 'table'"""
"""Selects a row if the schema has anything by which changing one row changes another."""


class SqliteApplier:
    """A SQLite database as the state. The applier owns the connection: nothing else may write through it.

        connection = sqlite3.connect("orders.db")
        applier = SqliteApplier(connection, "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total)")
        await recover(log, applier)

    `schema` has the statements that create the tables of row images (`CREATE TABLE IF NOT EXISTS ...`). `by_key`
    asserts that the key of each image is its primary key and that a row's key always has the same bytes; several
    processes can then replay a log into it. If the schema has triggers, foreign keys or other unique columns, one
    process replays it all the same.
    """

    def __init__(self, connection: sqlite3.Connection, schema: str = "", *, by_key: bool = False) -> None:
        connection.isolation_level = None  # transactions are begun and ended explicitly here
        self.connection = connection
        self._schema = schema
        self._by_key = by_key
        self._upserts: dict[str, tuple[str, str]] = {}
        self._create()

    def _create(self) -> None:
        self.connection.execute(_CREATE)
        self.connection.executescript(self._schema)

    def apply(self, runs: Sequence[Run], position: Position) -> None:
        """Applies the runs and stores the position in one transaction."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            for run in runs:
                self._apply_run(run)
            self._set_position(position)
        except BaseException:
            if self.connection.in_transaction:  # some errors, such as a full disk, have already ended it
                self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    def _apply_run(self, run: Run) -> None:
        if run.kind == Kind.STATEMENT:
            for payload in run.payloads:
                self._execute(*values_of(payload))
            return
        upsert, removal = self._upserts.get(run.table) or self._prepare(run.table)
        if run.kind == Kind.PUT:
            self.connection.executemany(upsert, map(values_of, run.payloads))
        else:
            self.connection.executemany(removal, map(values_of, run.keys))

    def _execute(self, sql: Parameter, *parameters: Parameter) -> None:
        if not isinstance(sql, str):
            raise RecoveryError(f"a statement must be a str, not {sql!r}")
        verb = _first_word(sql)
        if verb in _TRANSACTION_VERBS:
            # It would end the transaction that holds the position, so a crash could apply the changes before it twice.
            raise RecoveryError(
                f"{verb} is not allowed in a log; write the other statements as one transaction of the log"
            )
        self.connection.execute(sql, parameters)
        if verb not in _ROW_VERBS:
            self._upserts.clear()  # the table may have other columns now

    def _prepare(self, table: str) -> tuple[str, str]:
        columns = self.connection.execute("SELECT name, pk FROM pragma_table_info(?)", (table,)).fetchall()
        keys = [name for name, place in sorted(columns, key=lambda each: each[1]) if place]
        if not keys:
            raise RecoveryError(
                f"row images need a table with a primary key, and {table!r} has none or does not exist; create it"
            )
        marks = ", ".join("?" * len(columns))
        condition = " AND ".join(f"{_quoted(name)} = ?" for name in keys)
        upsert = f"REPLACE INTO {_quoted(table)} VALUES ({marks})"
        self._upserts[table] = upsert, f"DELETE FROM {_quoted(table)} WHERE {condition}"
        return self._upserts[table]

    def _set_position(self, position: Position) -> None:
        numbers = [each if each <= _INTEGER_MAX else str(each) for each in astuple(position)]
        self.connection.execute(f"REPLACE INTO {_POSITION_TABLE} VALUES (0, ?, ?, ?, ?)", numbers)

    def by_key(self) -> bool:
        """Returns whether `by_key` was given and the schema has nothing that rules it out."""
        return self._by_key and self.connection.execute(_BEYOND_KEYS).fetchone() is None

    def position(self) -> Position | None:
        """Returns the stored position, or None for an empty database."""
        columns = "next_offset, begin_offset, transaction_max, timestamp_ms_max"
        row = self.connection.execute(f"SELECT {columns} FROM {_POSITION_TABLE}").fetchone()
        return None if row is None else Position(*map(int, row))

    def dump(self) -> Iterable[bytes]:
        """Copies the database to a temporary file, then returns the frames of that file."""
        copy = tempfile.NamedTemporaryFile(prefix="ottla-snapshot-", suffix=".db")  # noqa: SIM115 - `_blocks` closes it
        with sqlite3.connect(copy.name) as target:
            self.connection.backup(target)
        target.close()
        return _blocks(copy)

    def load(self, frames: Iterable[bytes], position: Position) -> None:
        """Replaces the whole database by the snapshot."""
        with tempfile.NamedTemporaryFile(prefix="ottla-snapshot-", suffix=".db") as copy:
            for frame in frames:
                copy.write(frame)
            copy.flush()
            # Immutable: otherwise SQLite would create WAL files next to a copy of a database in WAL mode.
            source = sqlite3.connect(f"file:{copy.name}?mode=ro&immutable=1", uri=True)
            try:
                source.backup(self.connection)
            finally:
                source.close()
        self._upserts.clear()
        self._create()
        self._set_position(position)

    def clear(self) -> None:
        """Empties the database and creates the tables of the schema again."""
        empty = sqlite3.connect(":memory:")
        empty.backup(self.connection)
        empty.close()
        self._upserts.clear()
        self._create()

    def digest(self) -> bytes:
        """Returns a checksum of all rows of all tables except the position."""
        found = hashlib.blake2b(digest_size=DIGEST_BYTES)
        listed = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        for (table,) in self.connection.execute(f"{listed} ORDER BY name").fetchall():
            if table == _POSITION_TABLE:
                continue
            columns = self.connection.execute("SELECT count(*) FROM pragma_table_info(?)", (table,)).fetchone()[0]
            order = ", ".join(str(number) for number in range(1, columns + 1))
            found.update(repr(table).encode())
            for row in self.connection.execute(f"SELECT * FROM {_quoted(table)} ORDER BY {order}"):
                found.update(repr(row).encode())
        return found.digest()


def _blocks(copy: tempfile._TemporaryFileWrapper[bytes]) -> Iterator[bytes]:
    with copy:
        handle = os.open(copy.name, os.O_RDONLY)  # SQLite wrote through its own handle
        with open(handle, "rb") as file:
            while block := file.read(FRAME_BYTES):
                yield block


def _first_word(sql: str) -> str:
    begin = _BEFORE_A_WORD.match(sql)
    found = re.match(r"\w*", sql[begin.end() if begin else 0 :])
    return found[0].upper() if found else ""


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

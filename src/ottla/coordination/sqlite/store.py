"""Entries, their history and the leases as tables. Every call is one transaction and blocks."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from ottla.coordination.port import (
    Batch,
    Change,
    Committed,
    Condition,
    Conflict,
    Delete,
    Entry,
    LeaseEnded,
    LeaseId,
    Operation,
    Outcome,
    Put,
    Resync,
    Revision,
    Snapshot,
    conditions_hold,
    lease_of,
)
from ottla.coordination.sqlite.database import Database
from ottla.coordination.sqlite.history import History

REVISIONS_A_READ = 500

_PUT = """
INSERT INTO entries (key, value, version, lease) VALUES (?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version, lease = excluded.lease
"""


class LeaseRow(NamedTuple):
    """A lease as it is stored."""

    id: LeaseId
    boot_id: str
    file: str


class State(NamedTuple):
    """The revision and the leases of the store."""

    revision: Revision
    leases: tuple[LeaseRow, ...]
    last_lease: LeaseId
    """Leases with a higher id were opened later, so their absence from `leases` means nothing."""


class WatchPage(NamedTuple):
    """The batches for a watch, and the revision up to which they are complete."""

    batches: list[Batch]
    complete_to: Revision


class Store:
    """The store on top of the database."""

    def __init__(self, database: Database, history: History) -> None:
        self._database = database
        self._history = history

    def get(self, key: str) -> Entry | None:
        """Returns the latest entry of a key, or None."""
        with self._database.reading() as connection:
            return _entry(connection, key)

    def snapshot(self, prefix: str) -> Snapshot:
        """Returns all entries with this prefix and the revision at which they were read."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT key, value, version, lease FROM entries WHERE key >= ? AND key < ? ORDER BY key",
                _range(prefix),
            )
            return Snapshot(tuple(_entry_of(row) for row in rows), _revision(connection))

    def commit(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> Outcome:
        """Applies the operations if the conditions hold and the lease exists; otherwise changes nothing."""
        with self._database.writing() as connection:
            entries = {condition.key: _entry(connection, condition.key) for condition in conditions}
            if not conditions_hold(conditions, entries):
                return Conflict(entries)
            lease = lease_of(operations)
            if lease is not None and not _has_lease(connection, lease):
                return LeaseEnded(lease)
            return Committed(self._apply(connection, operations))

    def changes(self, prefix: str, after: Revision) -> WatchPage | Resync:
        """Returns the next changes under a prefix; Resync if the history no longer covers them."""
        with self._database.reading() as connection:
            revision = _revision(connection)
            (start,) = connection.execute("SELECT value FROM store WHERE name = 'history_start'").fetchone()
            if not start <= after <= revision:
                return Resync()
            complete_to = Revision(min(revision, after + REVISIONS_A_READ))
            rows = connection.execute(
                "SELECT revision, key, value, lease FROM changes"
                " WHERE revision > ? AND revision <= ? AND key >= ? AND key < ? ORDER BY revision, rowid",
                (after, complete_to, *_range(prefix)),
            )
            batches = [
                Batch(tuple(_change_of(row) for row in changed), Revision(one))
                for one, changed in groupby(rows, key=lambda row: row[0])
            ]
            return WatchPage(batches, complete_to)

    def state(self) -> State:
        """Returns the revision, the live leases and the id of the lease granted last (0 if there was none)."""
        with self._database.reading() as connection:
            leases = connection.execute("SELECT id, boot_id, file FROM leases ORDER BY id").fetchall()
            last = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'leases'").fetchone()
            last_lease = LeaseId(0 if last is None else last[0])
            return State(_revision(connection), tuple(LeaseRow(*row) for row in leases), last_lease)

    def add_lease(self, boot_id: str, file: str) -> LeaseId:
        """Records a lease with the boot id of its machine and the name of its file, and returns its id."""
        with self._database.writing() as connection:
            added = connection.execute("INSERT INTO leases (boot_id, file) VALUES (?, ?)", [boot_id, file])
            assert added.lastrowid is not None
            return LeaseId(added.lastrowid)

    def end_lease(self, lease: LeaseId, is_over: Callable[[], bool]) -> bool:
        """Removes the lease and its entries, if it still exists and has expired."""
        with self._database.writing() as connection:
            if not _has_lease(connection, lease) or not is_over():
                return False
            keys = connection.execute("SELECT key FROM entries WHERE lease = ? ORDER BY key", [lease]).fetchall()
            self._apply(connection, [Delete(key.decode()) for (key,) in keys])
            connection.execute("DELETE FROM leases WHERE id = ?", [lease])
            return True

    def _apply(self, connection: sqlite3.Connection, operations: Iterable[Operation]) -> Revision:
        before = _revision(connection)
        revision = Revision(before + 1)
        changes: list[tuple[int, bytes, bytes | None, LeaseId | None]] = []
        for operation in operations:
            key = operation.key.encode()
            match operation:
                case Put(value=value, lease=lease):
                    connection.execute(_PUT, [key, value, revision, lease])
                    changes.append((revision, key, value, lease))
                case Delete():
                    if connection.execute("DELETE FROM entries WHERE key = ?", [key]).rowcount:
                        changes.append((revision, key, None, None))
        if not changes:
            return before
        connection.executemany("INSERT INTO changes (revision, key, value, lease) VALUES (?, ?, ?, ?)", changes)
        connection.execute("UPDATE store SET value = ? WHERE name = 'revision'", [revision])
        self._history.prune(connection, revision, sum(len(key) + len(value or b"") for _, key, value, _ in changes))
        return revision


def _revision(connection: sqlite3.Connection) -> Revision:
    (revision,) = connection.execute("SELECT value FROM store WHERE name = 'revision'").fetchone()
    return Revision(revision)


def _entry(connection: sqlite3.Connection, key: str) -> Entry | None:
    found = connection.execute("SELECT key, value, version, lease FROM entries WHERE key = ?", [key.encode()])
    row = found.fetchone()
    return None if row is None else _entry_of(row)


def _has_lease(connection: sqlite3.Connection, lease: LeaseId) -> bool:
    return connection.execute("SELECT 1 FROM leases WHERE id = ?", [lease]).fetchone() is not None


def _range(prefix: str) -> tuple[bytes, bytes]:
    """Returns the first key with this prefix and the first key after all such keys. UTF-8 has no byte 255."""
    start = prefix.encode()
    return start, start[:-1] + bytes([start[-1] + 1]) if start else b"\xff"


def _entry_of(row: tuple[bytes, bytes, int, int | None]) -> Entry:
    key, value, version, lease = row
    return Entry(key.decode(), value, Revision(version), None if lease is None else LeaseId(lease))


def _change_of(row: tuple[int, bytes, bytes | None, int | None]) -> Change:
    revision, key, value, lease = row
    if value is None:
        return Change(key.decode(), None)
    return Change(key.decode(), _entry_of((key, value, revision, lease)))

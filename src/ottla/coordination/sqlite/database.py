"""The SQLite file: how it is opened, and transactions that wait for their turn.

It uses the rollback journal, because SQLite's WAL mode before 3.51.3 has a bug that can corrupt the file when its log
is reset (safety: sqlite-store). The journal is kept between transactions (PERSIST): a commit then overwrites and syncs
a header instead of creating and deleting a file, and takes about half the time. EXTRA costs nothing more in this mode,
and still holds if a file system forces another mode.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ottla.coordination.port import OutcomeUnknownError, UnavailableError
from ottla.coordination.sqlite.lock_holders import holders_of
from ottla.file_sync import sync_directory

SCHEMA_VERSION = 1
TURN_MS = (0.5, 3.0)
"""Random pause between two attempts to get the lock. A transaction takes about a millisecond, and nobody
should starve."""

_SCHEMA = """
CREATE TABLE store (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO store VALUES ('revision', 0), ('history_start', 0), ('history_bytes', 0);
CREATE TABLE entries (key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, lease INTEGER);
CREATE INDEX entries_of_leases ON entries (lease) WHERE lease IS NOT NULL;
CREATE TABLE changes (revision INTEGER NOT NULL, key BLOB NOT NULL, value BLOB, lease INTEGER);
CREATE INDEX changes_by_revision ON changes (revision);
CREATE TABLE leases (id INTEGER PRIMARY KEY AUTOINCREMENT, boot_id TEXT NOT NULL, file TEXT NOT NULL)
"""
_PRAGMAS = (
    "journal_mode = PERSIST",
    "synchronous = EXTRA",
    "fullfsync = ON",  # macOS: also flushes the drive's cache
    "cache_spill = OFF",  # a large transaction would have to wait for readers before its end
)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class Database:
    """The database. Every call blocks and comes from one thread, except `written_ns`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._deadline = 0.0
        self._connection: sqlite3.Connection | None = None

    def wait_until(self, deadline: float) -> None:
        """Sets how long the next transactions wait for those of others, on the clock `time.monotonic`."""
        self._deadline = deadline

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Starts a read transaction: one state of the store, whatever others write. Raises UnavailableError."""
        try:
            connection = self._open()
            connection.execute("BEGIN")
            self._patiently(connection, "SELECT value FROM store WHERE name = 'revision'")
            yield connection
            connection.execute("COMMIT")
        except BaseException as error:
            self._abandon(error)
            if isinstance(error, sqlite3.Error | OSError):
                raise self._unavailable(error) from error
            raise

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Starts a write transaction, exclusively. Raises UnavailableError if nothing was changed, OutcomeUnknownError
        if that is not certain."""
        try:
            connection = self._open()
            self._patiently(connection, "BEGIN IMMEDIATE")
            yield connection
        except BaseException as error:
            self._abandon(error)
            if isinstance(error, sqlite3.Error | OSError):
                raise self._unavailable(error) from error
            raise
        try:
            self._patiently(connection, "COMMIT")
        except sqlite3.Error as error:
            still_open = connection.in_transaction and _is_busy(error)
            self._abandon(error)
            if still_open:
                raise self._unavailable(error) from error
            raise OutcomeUnknownError(f"the commit failed: {error}") from error

    def written_ns(self) -> int:
        """Returns the wall-clock time of the last write to the file; every transaction that changes something writes to
        it. Takes no lock and never waits."""
        try:
            return os.stat(self._path).st_mtime_ns
        except OSError:
            return 0

    def close(self) -> None:
        """Closes the connection. Calling it again does nothing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=0)
        try:
            for pragma in _PRAGMAS:
                self._patiently(connection, f"PRAGMA {pragma}")
            if self._version(connection) == 0:
                self._patiently(connection, "BEGIN IMMEDIATE")
                if self._version(connection) == 0:  # nobody else was faster
                    for statement in _SCHEMA.split(";"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                self._patiently(connection, "COMMIT")
        except BaseException:
            connection.close()
            raise
        sync_directory(os.path.dirname(self._path))
        self._connection = connection
        return connection

    def _version(self, connection: sqlite3.Connection) -> int:
        """Returns the schema version; 0 in a new file."""
        ((version,),) = self._patiently(connection, "PRAGMA user_version")
        if version > SCHEMA_VERSION:
            raise UnavailableError(f"{self._path} was written by a newer Ottla (schema {version}); upgrade Ottla")
        return int(version)

    def _patiently(self, connection: sqlite3.Connection, statement: str) -> list[tuple[int]]:
        """Executes a statement, waiting while the database is busy. SQLite's own busy handler sleeps up to 100 ms
        between two attempts."""
        while True:
            try:
                return connection.execute(statement).fetchall()
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() >= self._deadline:
                    raise
            time.sleep(random.uniform(*TURN_MS) / 1000)

    def _unavailable(self, error: sqlite3.Error | OSError) -> UnavailableError:
        if isinstance(error, sqlite3.Error) and _is_busy(error):
            holders = holders_of(self._path) or "another process"
            return UnavailableError(f"{self._path} is locked by {holders}, and the lock was not released in time")
        return UnavailableError(f"{self._path} cannot be used: {error}")

    def _abandon(self, error: BaseException) -> None:
        """Rolls back. Closes the connection too, unless the database was merely busy: after an I/O error only a new
        connection is certain to see what is on the disk."""
        if self._connection is None:
            return
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()  # also rolls back; otherwise the next one to open the file does
        if not _is_busy(error):
            self.close()


def _is_busy(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY

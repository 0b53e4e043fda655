"""The broker's metadata in SQLite: one small file, with each change a transaction on stable storage.

It uses the rollback journal, because SQLite's WAL mode before 3.51.3 has a bug that can corrupt the file when the log
is reset. A transaction commits when its journal is deleted, and synchronous=FULL does not sync the directory after
that: a power cut could restore the journal and undo the commit. EXTRA is FULL plus that sync. Metadata changes are
rare, so speed does not matter here.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import UUID

from ottla.broker.standalone.catalog import CatalogState, TopicRecord
from ottla.file_sync import sync_directory
from ottla.protocol.model.ids import TopicId

SCHEMA_VERSION = 3
BUSY_TIMEOUT_S = 5.0

_SCHEMA = """
CREATE TABLE broker (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE topics (
    id BLOB PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    partition_count INTEGER NOT NULL,
    overrides TEXT NOT NULL,
    created_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE dynamic_configs (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE reserved_offsets (
    topic_id BLOB NOT NULL,
    partition INTEGER NOT NULL,
    end_offset INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition)
) WITHOUT ROWID;
"""

_SINCE_VERSION = {
    2: "CREATE TABLE deleted_topics (id BLOB PRIMARY KEY) WITHOUT ROWID",
    3: "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
}

_PUT_TOPIC = """
INSERT INTO topics (id, name, partition_count, overrides, created_ms) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    name = excluded.name,
    partition_count = excluded.partition_count,
    overrides = excluded.overrides,
    created_ms = excluded.created_ms
"""

_RESERVE_OFFSET = """
INSERT INTO reserved_offsets (topic_id, partition, end_offset) VALUES (?, ?, ?)
ON CONFLICT (topic_id, partition) DO UPDATE SET end_offset = max(end_offset, excluded.end_offset)
"""


class SqliteCatalog:
    """Implements `broker.standalone.catalog.Catalog`. All methods block. Calls from several threads are serialised."""

    def __init__(self, path: str, *, cluster_id: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._connection = self._open(cluster_id)
        except sqlite3.Error as error:
            raise self._os_error(error) from error

    def load(self) -> CatalogState:
        """Returns the whole metadata as of one transaction."""
        with self._transaction() as connection:
            broker = dict(connection.execute("SELECT name, value FROM broker"))
            topics = [
                TopicRecord(name, TopicId(UUID(bytes=topic_id)), partition_count, json.loads(overrides), created_ms)
                for topic_id, name, partition_count, overrides, created_ms in connection.execute(
                    "SELECT id, name, partition_count, overrides, created_ms FROM topics ORDER BY name"
                )
            ]
            dynamic_configs = dict(connection.execute("SELECT name, value FROM dynamic_configs ORDER BY name"))
            reserved_offsets = {
                (TopicId(UUID(bytes=topic_id)), partition): end_offset
                for topic_id, partition, end_offset in connection.execute("SELECT * FROM reserved_offsets")
            }
            entries = dict(connection.execute("SELECT key, value FROM entries"))
            deleted = frozenset(
                TopicId(UUID(bytes=topic_id)) for (topic_id,) in connection.execute("SELECT id FROM deleted_topics")
            )
        return CatalogState(
            cluster_id=broker["cluster_id"],
            incarnation=broker["incarnation"],
            topics=topics,
            dynamic_configs=dynamic_configs,
            next_producer_id=broker["next_producer_id"],
            reserved_offsets=reserved_offsets,
            entries=entries,
            deleted=deleted,
        )

    def begin_incarnation(self) -> int:
        with self._transaction() as connection:
            return self._add(connection, "incarnation", 1)

    def put_topic(self, topic: TopicRecord) -> None:
        self.put_topics([topic])

    def put_topics(self, topics: Sequence[TopicRecord]) -> None:
        with self._transaction() as connection:
            connection.executemany(
                _PUT_TOPIC,
                [
                    (topic.id.bytes, topic.name, topic.partition_count, json.dumps(topic.overrides), topic.created_ms)
                    for topic in topics
                ],
            )

    def delete_topic(self, topic_id: TopicId, gone: Iterable[TopicId] = ()) -> None:
        with self._transaction() as connection:
            connection.execute("DELETE FROM topics WHERE id = ?", [topic_id.bytes])
            connection.execute("DELETE FROM reserved_offsets WHERE topic_id = ?", [topic_id.bytes])
            connection.executemany("DELETE FROM deleted_topics WHERE id = ?", [[other.bytes] for other in gone])
            connection.execute("INSERT OR IGNORE INTO deleted_topics (id) VALUES (?)", [topic_id.bytes])

    def forget_deleted(self, gone: Iterable[TopicId]) -> None:
        with self._transaction() as connection:
            connection.executemany("DELETE FROM deleted_topics WHERE id = ?", [[topic_id.bytes] for topic_id in gone])

    def put_dynamic_configs(self, configs: Mapping[str, str]) -> None:
        with self._transaction() as connection:
            connection.execute("DELETE FROM dynamic_configs")
            connection.executemany("INSERT INTO dynamic_configs (name, value) VALUES (?, ?)", list(configs.items()))

    def change_entries(self, puts: Mapping[str, bytes], deletes: Iterable[str] = ()) -> None:
        with self._transaction() as connection:
            connection.executemany("DELETE FROM entries WHERE key = ?", [[key] for key in deletes])
            connection.executemany("INSERT OR REPLACE INTO entries (key, value) VALUES (?, ?)", list(puts.items()))

    def reserve_producer_ids(self, count: int) -> int:
        with self._transaction() as connection:
            return self._add(connection, "next_producer_id", count) - count

    def reserve_offsets(self, ends: Mapping[tuple[TopicId, int], int]) -> None:
        with self._transaction() as connection:
            connection.executemany(
                _RESERVE_OFFSET, [(topic_id.bytes, partition, end) for (topic_id, partition), end in ends.items()]
            )

    def close(self) -> None:
        """Closes the database; every change is already durable."""
        with self._lock:
            self._connection.close()

    def _open(self, cluster_id: str) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_S)
        try:
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA fullfsync = ON")  # on macOS: flush the drive's own cache
            connection.execute("BEGIN IMMEDIATE")
            self._create_or_check(connection, cluster_id)
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        sync_directory(os.path.dirname(os.path.abspath(self._path)))
        return connection

    def _create_or_check(self, connection: sqlite3.Connection, cluster_id: str) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise OSError(
                errno.EINVAL,
                f"the metadata was written by a newer Ottla (schema {version}; this version reads up to "
                f"{SCHEMA_VERSION}). Upgrade Ottla",
                self._path,
            )
        if version == 0:
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.executemany(
                "INSERT INTO broker (name, value) VALUES (?, ?)",
                [("cluster_id", cluster_id), ("incarnation", 0), ("next_producer_id", 0)],
            )
        if version < SCHEMA_VERSION:
            for since, statement in _SINCE_VERSION.items():
                if version < since:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        (found,) = connection.execute("SELECT value FROM broker WHERE name = 'cluster_id'").fetchone()
        if found != cluster_id:
            raise OSError(
                errno.EINVAL,
                f"the metadata belongs to the cluster {found}, not to {cluster_id}; was it copied from another broker?",
                self._path,
            )

    def _add(self, connection: sqlite3.Connection, name: str, amount: int) -> int:
        connection.execute("UPDATE broker SET value = value + ? WHERE name = ?", [amount, name])
        (value,) = connection.execute("SELECT value FROM broker WHERE name = ?", [name]).fetchone()
        return int(value)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Runs a transaction: atomic, and on stable storage when it ends. After a failure the connection remains
        usable."""
        with self._lock:
            connection = self._connection
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._roll_back()
                raise self._os_error(error) from error
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        """Rolls back. A failed commit may have done so already; if even this fails, the next BEGIN reports it."""
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            return

    def _os_error(self, error: sqlite3.Error) -> OSError:
        name = getattr(error, "sqlite_errorname", "") or type(error).__name__
        for prefix, (number, advice) in _FAILURES.items():
            if name.startswith(prefix):
                return OSError(number, f"{advice} (SQLite: {error})", self._path)
        return OSError(errno.EIO, f"the metadata could not be read or written (SQLite: {name}: {error})", self._path)


_FAILURES = {
    "SQLITE_FULL": (errno.ENOSPC, "there is no space left for the metadata; free some space and try again"),
    "SQLITE_BUSY": (errno.EBUSY, "another process has locked the metadata;  stop it and try again"),
    "SQLITE_LOCKED": (errno.EBUSY, "another process has locked the metadata;  stop it and try again"),
    "SQLITE_READONLY": (errno.EROFS, "the metadata is read-only; check the directory's owner and its mount"),
    "SQLITE_CANTOPEN": (errno.EACCES, "the metadata cannot be opened; check the directory and its permissions"),
    "SQLITE_CORRUPT": (errno.EIO, "the metadata is damaged; restore this file from a backup"),
    "SQLITE_NOTADB": (errno.EIO, "the metadata is damaged; restore this file from a backup"),
    "SQLITE_CONSTRAINT": (errno.EEXIST, "the metadata has another topic of this name"),
}

"""SQLite appliers: images and statements, with their position in the same transaction; snapshots of a database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from ottla.recovery import Point, RecoveryError, SnapshotStore, SqliteApplier, recover
from ottla.recovery.entries import Change, Kind, delete, digest, json_values, put, statement, transaction_entries
from tests.unit.recovery_memory_log import MemoryLog, Shared

SCHEMA = 'CREATE TABLE IF NOT EXISTS "the orders" (id INTEGER, line TEXT, note BLOB, PRIMARY KEY (line, id));'


def a_log(*entries: bytes, chunk: int = 3) -> MemoryLog:
    shared = Shared()
    for entry in entries:
        shared.add(entry)
    return MemoryLog(shared, chunk=chunk)


def image(number: int, line: str, note: bytes | None) -> bytes:
    return put(json_values([line, number]), json_values([number, line, note]), table="the orders")


def rows(applier: SqliteApplier, table: str = '"the orders"') -> list[tuple[object, ...]]:
    return applier.connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()


async def test_row_images_into_a_table() -> None:
    log = a_log(
        image(1, "a", b"\0"),
        image(1, "b", None),
        image(2, "a", b""),
        delete(json_values(["b", 1]), table="the orders"),
        image(1, "a", b"new"),
        delete(json_values(["never", 1]), table="the orders"),
    )
    applier = SqliteApplier(sqlite3.connect(":memory:"), SCHEMA)
    await recover(log, applier)
    assert rows(applier) == [(1, "a", b"new"), (2, "a", b"")]


async def test_images_of_a_table_that_is_not_there_are_refused() -> None:
    applier = SqliteApplier(sqlite3.connect(":memory:"))
    with pytest.raises(RecoveryError, match="'the orders' is none here: create it"):
        await recover(a_log(image(1, "a", None)), applier)
    assert applier.position() is None, "nothing of the chunk is there"


COUNT = "INSERT INTO counts VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET n = n + 1"


async def test_statements_are_done_once_whenever_the_database_dies(tmp_path: Path) -> None:
    """The connection is left without a commit at each place of the log, as a kill leaves it."""
    changes: list[Change] = [(Kind.STATEMENT, "", b"", json_values([COUNT, "t"])) for _ in range(3)]
    entries = [statement("CREATE TABLE counts (name TEXT PRIMARY KEY, n INTEGER)")]
    entries += [statement(COUNT, [name]) for name in "abacab"]
    entries += transaction_entries(1, changes)
    log = a_log(*entries)
    for dies_at in range(1, len(entries) + 1):
        path = tmp_path / f"{dies_at}.db"
        dying = SqliteApplier(sqlite3.connect(path))
        await recover(log, dying, until=Point(offset=dies_at))
        dying.connection.execute("BEGIN IMMEDIATE")
        dying.connection.execute("CREATE TABLE never_committed (x)")
        dying.connection.close()
        applier = SqliteApplier(sqlite3.connect(path))
        recovered = await recover(log, applier)
        assert rows(applier, "counts") == [("a", 3), ("b", 2), ("c", 1), ("t", 3)], dies_at
        assert recovered.entry_count <= len(entries) - dies_at + 3, "it went on where it was"


async def test_a_statement_that_fails_changes_nothing() -> None:
    applier = SqliteApplier(sqlite3.connect(":memory:"))
    log = a_log(
        statement("CREATE TABLE t (x)"), statement("INSERT INTO t VALUES (1)"), statement("INSERT INTO no VALUES (1)")
    )
    with pytest.raises(sqlite3.OperationalError, match="no such table: no"):
        await recover(log, applier)
    assert applier.position() is None
    assert applier.connection.execute("SELECT name FROM sqlite_schema WHERE name = 't'").fetchall() == []


async def test_a_snapshot_of_a_database_and_the_rest_of_the_log(tmp_path: Path) -> None:
    entries = [image(number % 7, "a", b"%d" % number) for number in range(40)]
    log, store = a_log(*entries), SnapshotStore(tmp_path / "snapshots")
    first = SqliteApplier(sqlite3.connect(":memory:"), SCHEMA)
    taken = await recover(log, first, until=Point(offset=30))
    store.publish(first.dump(), taken.position)
    await recover(log, first)
    second = SqliteApplier(sqlite3.connect(tmp_path / "second.db"), SCHEMA)
    recovered = await recover(log, second, snapshots=store)
    assert recovered.entry_count == 10
    assert (rows(second), second.digest()) == (rows(first), first.digest())
    assert second.position() == first.position()
    back = await recover(log, second, snapshots=store, until=Point(offset=5))
    assert (back.entry_count, len(rows(second))) == (5, 5), "to a point before the snapshot and before its own state"


async def test_the_checksum_of_a_database_is_that_of_its_rows() -> None:
    writer = SqliteApplier(sqlite3.connect(":memory:"), SCHEMA)
    entries = [image(2, "a", None), image(1, "a", None)]
    await recover(a_log(*entries), writer)
    found = await recover(
        a_log(*reversed(entries), digest(writer.digest())), SqliteApplier(sqlite3.connect(":memory:"), SCHEMA)
    )
    assert found.replayer.digest_count == 1

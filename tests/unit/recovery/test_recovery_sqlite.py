"""SQLite appliers: images and statements, with their position in the same transaction; snapshots of a database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from ottla.recovery import (
    LogTrimmedError,
    Point,
    PointNotReachedError,
    Position,
    RecoveryError,
    SnapshotStore,
    SqliteApplier,
    recover,
)
from ottla.recovery.entries import Change, Kind, delete, digest, json_values, put, statement, transaction_entries
from tests.support.recovery_memory_log import MemoryLog, Shared

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
    with pytest.raises(RecoveryError, match="'the orders' has none or does not exist; create it"):
        await recover(a_log(image(1, "a", None)), applier)
    assert applier.position() is None, "nothing of the chunk is there"


COUNT = "INSERT INTO counts VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET n = n + 1"


async def test_statements_are_done_once_whenever_the_database_dies(tmp_path: Path) -> None:
    """The connection is abandoned without a commit at each position of the log, as by a kill."""
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


async def test_a_database_that_is_too_far_behind_stays_as_it_is() -> None:
    log = a_log(*[image(number, "a", None) for number in range(10)])
    applier = SqliteApplier(sqlite3.connect(":memory:"), SCHEMA)
    await recover(log, applier, until=Point(offset=3))
    with pytest.raises(PointNotReachedError):
        await recover(log, applier, until=Point(offset=11))
    await log.trim(5)
    with pytest.raises(LogTrimmedError):
        await recover(log, applier)
    assert len(rows(applier)) == 3


def test_the_largest_transaction_id_is_kept() -> None:
    applier = SqliteApplier(sqlite3.connect(":memory:"))
    position = Position(3, 2, (1 << 64) - 1, 1000)
    applier.apply([], position)
    assert applier.position() == position


@pytest.mark.parametrize("sql", ["COMMIT", " begin immediate", "-- all\n/* of it */; End", "SAVEPOINT a", "rollback"])
async def test_a_statement_that_would_end_the_transaction_is_refused_and_changes_nothing(sql: str) -> None:
    applier = SqliteApplier(sqlite3.connect(":memory:"), SCHEMA)
    log = a_log(image(1, "a", None), statement(sql), image(2, "a", None))
    with pytest.raises(RecoveryError, match="is not allowed in a log") as caught:
        await recover(log, applier)
    assert caught.value.__notes__ == ["while entries from offset 0 to 2 of the log were applied"]
    assert rows(applier) == []
    assert applier.position() is None


async def test_images_of_a_table_that_got_another_column() -> None:
    """Statements prepared for the old table are not reused."""
    applier = SqliteApplier(sqlite3.connect(":memory:"), "CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY);")
    log = a_log(
        put(b"[1]", b"[1]", table="t"),
        statement("ALTER TABLE t ADD COLUMN n"),
        put(b"[2]", b"[2,3]", table="t"),
        chunk=9,
    )
    await recover(log, applier)
    assert rows(applier, "t") == [(1, None), (2, 3)]


async def test_an_error_that_ends_the_transaction_is_the_one_that_is_raised() -> None:
    applier = SqliteApplier(sqlite3.connect(":memory:"), "CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY);")
    log = a_log(put(b"[1]", b"[1]", table="t"), statement("INSERT OR ROLLBACK INTO t VALUES (1)"))
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE constraint failed"):
        await recover(log, applier)
    assert applier.connection.execute("SELECT * FROM t").fetchall() == []


async def test_a_snapshot_of_a_database_in_wal_mode_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    connection = sqlite3.connect(tmp_path / "state.db")
    connection.execute("PRAGMA journal_mode=WAL")
    applier, other = SqliteApplier(connection, SCHEMA), SqliteApplier(sqlite3.connect(":memory:"), SCHEMA)
    await recover(a_log(image(1, "a", None)), applier)
    other.load(list(applier.dump()), Position(1, 1))
    assert other.digest() == applier.digest()
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    "tie",
    [
        "CREATE UNIQUE INDEX u ON t (n)",
        "CREATE TRIGGER r AFTER DELETE ON t BEGIN DELETE FROM t; END",
        "CREATE TABLE child (id INTEGER PRIMARY KEY, t INTEGER REFERENCES t (id) ON DELETE CASCADE)",
    ],
)
def test_rows_that_depend_on_one_another_are_not_replayed_by_key(tie: str) -> None:
    applier = SqliteApplier(sqlite3.connect(":memory:"), "CREATE TABLE t (id INTEGER PRIMARY KEY, n);", by_key=True)
    assert applier.by_key()
    applier.connection.execute("CREATE INDEX plain ON t (n)")
    applier.connection.execute("CREATE TABLE named (name TEXT PRIMARY KEY) WITHOUT ROWID")
    assert applier.by_key()
    applier.connection.execute(tie)
    assert not applier.by_key()
    assert not SqliteApplier(sqlite3.connect(":memory:")).by_key(), "only if it was said"

"""The SQLite coordination store: the files it leaves and finds, and what it does without notifications."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from ottla.broker.adapters.clock import RealClock
from ottla.coordination.port import Batch, Committed, LeaseEnded, Put, Resync, Revision, UnavailableError
from ottla.coordination.sqlite import History, SqliteCoordination
from ottla.coordination.sqlite.lease_files import LEFT_AFTER_S, LeaseFile, LeaseObserver, boot_id, is_over
from ottla.coordination.sqlite.store import LeaseRow

TIMEOUT_S = 20.0


async def client_of(directory: Path, history: History | None = None) -> SqliteCoordination:
    clock = RealClock(asyncio.get_running_loop())
    return await SqliteCoordination.open(str(directory), clock, history=history, request_timeout_ms=1000)


def sql(directory: Path, *statements: str) -> None:
    """Runs a statement as another program would, without a notification."""
    with closing(sqlite3.connect(directory / "coordination.db", isolation_level=None, timeout=5)) as connection:
        for statement in statements:
            connection.execute(statement)


async def until_gone(client: SqliteCoordination, key: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while await client.get(key) is not None:  # noqa: ASYNC110  # the condition is what is tested
            await asyncio.sleep(0.01)


async def test_a_reboot_ends_all_leases(tmp_path: Path) -> None:
    client = await client_of(tmp_path)
    lease = await client.open_lease(3_600_000)
    await client.commit([], [Put("mine", b"value", lease.id), Put("kept", b"value")])
    sql(tmp_path, "UPDATE leases SET boot_id = 'of an earlier start'")
    await until_gone(client, "mine")
    assert await client.get("kept") is not None
    assert lease.lost
    assert await lease.renew() is False
    assert await client.commit([], [Put("mine", b"value", lease.id)]) == LeaseEnded(lease.id)
    await client.close()


async def test_a_lease_without_its_file_has_ended(tmp_path: Path) -> None:
    first = await client_of(tmp_path)
    lease = await first.open_lease(3_600_000)
    await first.commit([], [Put("mine", b"value", lease.id)])
    await first.close()
    for file in (tmp_path / "leases").iterdir():
        file.unlink()
    second = await client_of(tmp_path)
    await until_gone(second, "mine")
    await second.close()


async def test_a_change_without_a_nudge_is_seen(tmp_path: Path) -> None:
    """Its writer was killed between its commit and the notification."""
    client = await client_of(tmp_path)
    watch = client.watch("", Revision(0))
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0.3)
    sql(
        tmp_path,
        "BEGIN IMMEDIATE",
        "INSERT INTO entries VALUES (x'6b', x'76', 1, NULL)",
        "INSERT INTO changes VALUES (1, x'6b', x'76', NULL)",
        "UPDATE store SET value = 1 WHERE name = 'revision'",
        "COMMIT",
    )
    async with asyncio.timeout(TIMEOUT_S):
        found = await waiting
    assert isinstance(found, Batch)
    assert found.changes[0].key == "k"
    await watch.aclose()
    await client.close()


@pytest.mark.parametrize("history", [History(revisions_max=10), History(bytes_max=10_000)], ids=["many", "large"])
async def test_the_history_is_limited(tmp_path: Path, history: History) -> None:
    client = await client_of(tmp_path, history)
    for _ in range(30):
        await client.commit([], [Put("key", bytes(1000))])
    with closing(sqlite3.connect(tmp_path / "coordination.db")) as connection:
        (kept, size) = connection.execute("SELECT count(*), sum(length(key) + length(value)) FROM changes").fetchone()
        numbers = dict(connection.execute("SELECT name, value FROM store"))
    assert 4 <= kept <= 10
    assert numbers["history_bytes"] == size
    assert numbers["history_start"] == numbers["revision"] - kept
    assert await anext(client.watch("", Revision(numbers["history_start"] - 1))) == Resync()
    watch = client.watch("", Revision(numbers["history_start"]))
    assert [(await anext(watch)) for _ in range(kept)][-1].revision == 30  # type: ignore[union-attr]  # no Resync
    await watch.aclose()
    await client.close()


async def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    first = await client_of(tmp_path)
    await first.close()
    sql(tmp_path, "PRAGMA user_version = 99")
    with pytest.raises(UnavailableError, match="newer Ottla"):
        await client_of(tmp_path)


async def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "coordination.db").write_bytes(b"this is not a database" * 1000)
    with pytest.raises(UnavailableError, match="not a database"):
        await client_of(tmp_path)


async def test_what_dead_processes_left_is_removed(tmp_path: Path) -> None:
    client = await client_of(tmp_path)
    os.mkfifo(tmp_path / "watchers" / "dead")
    left, fresh = tmp_path / "leases" / "left", tmp_path / "leases" / "fresh"
    left.touch()
    fresh.touch()
    os.utime(left, (time.time() - LEFT_AFTER_S - 1,) * 2)
    await client.commit([], [Put("key", b"value")])
    assert not (tmp_path / "watchers" / "dead").exists()
    other = await client_of(tmp_path)
    assert not left.exists()
    assert fresh.exists(), "its owner may be about to write it into the store"
    assert len(list((tmp_path / "watchers").iterdir())) == 2
    await client.close()
    await other.close()
    assert list((tmp_path / "watchers").iterdir()) == []


async def test_a_transaction_of_another_program_does_not_hide_behind_the_clock(tmp_path: Path) -> None:
    """Two commits may have the same modification time of the file."""
    client, other = await client_of(tmp_path), await client_of(tmp_path)
    for number in range(20):
        outcome = await other.commit([], [Put("key", b"%d" % number)])
        assert isinstance(outcome, Committed)
        entry = await client.get("key")
        assert entry is not None
        assert entry.version == outcome.revision
    await client.close()
    await other.close()


# -- lease files -----------------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> str:
    (tmp_path / "leases").mkdir()
    return str(tmp_path)


def row_of(file: LeaseFile) -> LeaseRow:
    return LeaseRow(1, boot_id(), file.name)  # type: ignore[arg-type]  # a plain number is enough here


def test_a_held_file_is_alive_until_its_deadline(directory: str) -> None:
    file = LeaseFile(directory, 1000.0)
    observer = LeaseObserver(directory)
    observer.observe([row_of(file)])
    assert observer.over(999.0) == []
    assert not is_over(directory, row_of(file), 999.0)
    assert file.renew(2000.0)
    assert observer.over(1999.0) == []
    assert observer.over(2000.0) == [row_of(file)]
    observer.close()
    file.remove()


def test_what_an_observer_saw_passed_cannot_be_renewed(directory: str) -> None:
    file = LeaseFile(directory, 1000.0)
    assert is_over(directory, row_of(file), 1000.0)
    assert not file.renew(5000.0)
    assert is_over(directory, row_of(file), 1000.0), "a refused renewal must not move the deadline"
    file.remove()


def test_a_released_file_is_over_at_once(directory: str) -> None:
    file = LeaseFile(directory, 1e12)
    observer = LeaseObserver(directory)
    observer.observe([row_of(file)])
    assert observer.over(0.0) == []
    file.release()
    assert observer.over(0.0) == [row_of(file)]
    assert not file.renew(1e12), "a number of a closed file may stand for another one"
    observer.close()


def test_a_forked_child_does_not_keep_the_lease(directory: str) -> None:
    file = LeaseFile(directory, 1e12)
    ready, waiting = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b".")
        os.read(waiting[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        assert not is_over(directory, row_of(file), 0.0)
        file.release()
        assert is_over(directory, row_of(file), 0.0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for fd in (*ready, *waiting):
            os.close(fd)

"""Problems with a log or a target are reported, and nothing existing is lost."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from ottla.connect.failures import NeedsHelpError
from ottla.connect.sqlite.restore import RestoreError, RestorePoint, restore
from ottla.wal import LogSettings, SyncLog
from tests.connect.sqlite.app import App
from tests.connect.sqlite.followed import Followed


@pytest.fixture
def shipped(app: App, followed: Followed) -> Followed:
    """Five transactions and a base snapshot."""
    shipper = followed.follow()
    for value in range(5):
        app.do(f"INSERT INTO t VALUES ({value}, 0)")
        shipper.poll()
    followed.leave()
    return followed


def refused(log: SyncLog, to: Path, moment: RestorePoint | None = None) -> str:
    with pytest.raises(NeedsHelpError) as refusal:
        restore(log, to, moment or RestorePoint())
    leftovers = [path.name for path in to.parent.iterdir() if "restoring" in path.name]
    assert not leftovers
    return str(refusal.value)


def copied(shipped: Followed, change: dict[int, bytes | None]) -> SyncLog:
    """Copies the log with other entries at some positions; None leaves them out."""
    copy = SyncLog.open(shipped.servers, f"{shipped.name}-copy", create=LogSettings())
    with SyncLog.open(shipped.servers, shipped.name) as log:
        for place, entry in enumerate(log.read(log.tail().start_offset)):
            data = change.get(place, entry.data)
            # Offsets stay as they are: the first one is that of the fence.
            if place == 0:
                for _ in range(entry.offset):
                    copy.append(b"").result()
            if data is not None:
                copy.append(data).result()
    return copy


def test_a_gap_is_found(shipped: Followed, tmp_path: Path) -> None:
    with copied(shipped, {3: None}) as log:
        assert "has a gap" in refused(log, tmp_path / "b.db")
        assert "has a gap" in refused(log, tmp_path / "b.db", RestorePoint(transaction=3))
        assert "has a gap" in refused(log, tmp_path / "b.db", RestorePoint(time_ms=time.time_ns() // 1_000_000))
        assert restore(log, tmp_path / "b.db", RestorePoint(transaction=2)).transaction == 2


def test_an_entry_that_comes_twice_is_found(shipped: Followed, tmp_path: Path) -> None:
    with SyncLog.open(shipped.servers, shipped.name) as log:
        entries = [entry.data for entry in log.read(log.tail().start_offset)]
    with copied(shipped, {3: entries[2]}) as log:
        assert "has a gap" in refused(log, tmp_path / "b.db")


def test_a_damaged_entry_is_found(shipped: Followed, tmp_path: Path) -> None:
    with SyncLog.open(shipped.servers, shipped.name) as log:
        entries = [entry.data for entry in log.read(log.tail().start_offset)]
    with copied(shipped, {3: entries[3][:-1] + bytes([entries[3][-1] ^ 1])}) as log:
        assert "its checksum is wrong" in refused(log, tmp_path / "b.db")


def test_a_log_of_something_else_is_said_to_be_one(servers: str, tmp_path: Path) -> None:
    with SyncLog.open(servers, "of-something-else", create=LogSettings()) as log:
        assert "is empty" in refused(log, tmp_path / "b.db")
        log.append(b"orders").result()
        assert "choose another one with --log" in refused(log, tmp_path / "b.db")


def test_a_moment_that_is_not_there_is_named(shipped: Followed, tmp_path: Path) -> None:
    with SyncLog.open(shipped.servers, shipped.name) as log:
        assert "there is no transaction 9: the last one in the log is 5" in refused(
            log, tmp_path / "b.db", RestorePoint(transaction=9)
        )
        long_ago = refused(log, tmp_path / "b.db", RestorePoint(time_ms=1000))
        assert "does not go back that far: its first snapshot is after transaction 0" in long_ago


def test_a_time_is_the_last_transaction_until_then(app: App, followed: Followed, tmp_path: Path) -> None:
    shipper = followed.follow()
    app.do("INSERT INTO t VALUES (1, 0)")
    shipper.poll()
    time.sleep(0.01)
    between_ms = time.time_ns() // 1_000_000
    time.sleep(0.01)
    app.do("INSERT INTO t VALUES (2, 0)")
    shipper.poll()
    assert restore(followed.log, tmp_path / "b.db", RestorePoint(time_ms=between_ms)).transaction == 1
    assert restore(followed.log, tmp_path / "c.db", RestorePoint(time_ms=between_ms + 60_000)).transaction == 2


def test_a_file_that_is_there_stays_unless_it_is_to_be_replaced(shipped: Followed, tmp_path: Path) -> None:
    target = tmp_path / "b.db"
    with App(target, "journal_mode=WAL") as user, SyncLog.open(shipped.servers, shipped.name) as log:
        user.do("CREATE TABLE mine (x)")
        before = target.read_bytes()
        assert "already exists" in refused(log, target)
        with pytest.raises(RestoreError, match="is in use"):
            restore(log, target, RestorePoint(), force=True)
        user.kill()
        assert target.read_bytes() == before
        assert Path(f"{target}-wal").exists()
        restore(log, target, RestorePoint(), force=True)
    assert not Path(f"{target}-wal").exists(), "the old WAL would be taken for that of the new file"
    with closing(sqlite3.connect(target)) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (5,)


def test_a_wal_without_its_file_is_in_the_way_too(shipped: Followed, tmp_path: Path) -> None:
    Path(tmp_path / "b.db-wal").write_bytes(b"somebody's")
    with SyncLog.open(shipped.servers, shipped.name) as log:
        assert "b.db-wal already exists" in refused(log, tmp_path / "b.db")


def test_a_log_that_lost_its_snapshot_says_so(shipped: Followed, tmp_path: Path) -> None:
    with SyncLog.open(shipped.servers, shipped.name) as log:
        log.trim(log.tail().end_offset - 1)
        assert "no longer has the snapshot" in refused(log, tmp_path / "b.db")

"""A log whose head was deleted by retention: a database is restored from its archive and the rest of the log."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ottla.connect.archived_log import ArchiveError, SyncArchivedLog
from ottla.connect.sqlite.restore import RestoreError, RestorePoint, restore
from ottla.wal import SyncLog
from tests.connect.log_archives import archive_log
from tests.connect.sqlite.app import App
from tests.connect.sqlite.followed import Followed

ROWS = "SELECT x FROM t ORDER BY x"


@pytest.fixture
def trimmed(app: App, followed: Followed, tmp_path: Path) -> tuple[Followed, Path, int]:
    """Ten transactions, all but the last archived; the first half of the log is deleted, with its snapshot."""
    shipper = followed.follow()
    for value in range(10):
        app.do(f"INSERT INTO t VALUES ({value}, 0)")
        shipper.poll()
    followed.leave()
    archive = tmp_path / "archive"
    with SyncLog.open(followed.servers, followed.name) as log:
        tail = log.tail()
        middle = (tail.start_offset + tail.end_offset) // 2
        archive_log(followed.servers, followed.name, archive, (0, 3), (3, tail.end_offset - 1))
        assert log.trim(middle) == middle
    return followed, archive, middle


def test_the_archive_and_the_log_together(trimmed: tuple[Followed, Path, int], tmp_path: Path) -> None:
    followed, archive, _ = trimmed
    for at in (0, 2, 7, 10, None):
        target = tmp_path / f"at-{at}.db"
        with SyncLog.open(followed.servers, followed.name) as live:
            both = SyncArchivedLog(live, os.fspath(archive), followed.name)
            restore(both, target, RestorePoint(transaction=at))
            with pytest.raises(RestoreError, match=r"retention.ms deleted it\. .*--archive DIRECTORY"):
                restore(live, tmp_path / "without.db", RestorePoint(transaction=at))
        with closing(sqlite3.connect(target)) as restored:
            assert [row[0] for row in restored.execute(ROWS)] == list(range(10 if at is None else at))
    assert not (tmp_path / "without.db").exists()


def test_offsets_in_neither_are_named(trimmed: tuple[Followed, Path, int], tmp_path: Path) -> None:
    followed, archive, middle = trimmed
    with SyncLog.open(followed.servers, followed.name) as live:
        end = live.tail().end_offset
        late = tmp_path / "late"
        archive_log(followed.servers, followed.name, late, (middle + 1, end))
        both = SyncArchivedLog(live, os.fspath(late), followed.name)
        assert (both.tail().start_offset, both.tail().end_offset) == (middle, end)
        live.trim(end)
        part = SyncArchivedLog(live, os.fspath(late), followed.name).part
        assert (part.start, part.end) == (middle + 1, end)
        with pytest.raises(ArchiveError, match=rf"offsets {end - 1}-{end - 1} are in neither"):
            SyncArchivedLog(live, os.fspath(archive), followed.name)


def test_the_command(trimmed: tuple[Followed, Path, int], tmp_path: Path) -> None:
    followed, archive, _ = trimmed
    command = [sys.executable, "-m", "ottla", "restore", "sqlite", "--log", followed.name, "--wal", followed.servers]
    command += ["--to", str(tmp_path / "b.db"), "--at", "3"]
    without = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert without.returncode == 1
    assert "--archive DIRECTORY" in " ".join(without.stderr.split())
    done = subprocess.run(
        [*command, "--archive", str(archive)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "after transaction 3" in done.stdout


def test_the_archive_alone_when_the_brokers_are_lost(trimmed: tuple[Followed, Path, int], tmp_path: Path) -> None:
    """As far as it reaches: its last record is one before the log's."""
    followed, archive, _ = trimmed
    target = tmp_path / "alone.db"
    command = [sys.executable, "-m", "ottla", "restore", "sqlite", "--log", followed.name, "--wal", "127.0.0.1:1"]
    command += ["--to", str(target), "--without-log"]
    wrong = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert wrong.returncode == 2
    assert "--without-log restores from an archive" in wrong.stderr
    done = subprocess.run(
        [*command, "--archive", str(archive)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(target)) as restored:
        assert [row[0] for row in restored.execute(ROWS)] == list(range(9))

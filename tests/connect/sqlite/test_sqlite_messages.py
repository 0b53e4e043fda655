"""Error messages of the command line for databases, with the commands that fix them."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ottla.connect.failures import ConnectorError, NeedsHelpError
from ottla.connect.sqlite import NotShippedError, wait_shipped
from ottla.connect.sqlite.failures import check_database
from ottla.connect.sqlite.shipping_progress import ProgressFile
from ottla.connect.sqlite.source import Source
from tests.connect.sqlite.app import App
from tests.connect.sqlite.followed import Followed

NOBODY = 65534


def refusal(path: Path) -> str:
    with pytest.raises(ConnectorError) as refused:
        Source(path, busy_s=0.1).close()
    return str(refused.value)


def test_what_is_no_database_in_wal_mode_is_refused_in_words(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none.db")
    assert "is a directory" in refusal(tmp_path)
    (tmp_path / "encrypted.db").write_bytes(os.urandom(8192))
    assert "is not an SQLite database, or it is encrypted" in refusal(tmp_path / "encrypted.db")
    (tmp_path / "empty.db").touch()
    assert "is not in WAL mode" in refusal(tmp_path / "empty.db")
    sqlite3.connect(tmp_path / "plain.db").execute("CREATE TABLE t (x)")
    said = refusal(tmp_path / "plain.db")
    assert f"sqlite3 {tmp_path}/plain.db 'PRAGMA journal_mode=WAL'" in said


def test_a_damaged_database_is_refused_in_words(app: App, tmp_path: Path) -> None:
    app.close()
    with open(tmp_path / "a.db", "r+b") as file:
        file.seek(100)
        file.write(os.urandom(3000))
    assert "is damaged, or encrypted" in refusal(tmp_path / "a.db")


def test_a_program_that_is_alone_with_the_database_is_named_as_the_reason(app: App, tmp_path: Path) -> None:
    app.do("PRAGMA locking_mode=EXCLUSIVE", "BEGIN EXCLUSIVE", "COMMIT")
    assert "is locked by another program" in refusal(tmp_path / "a.db")


def test_a_directory_that_may_not_be_written_is_named(app: App, tmp_path: Path) -> None:
    app.close()
    tmp_path.chmod(0o555)
    try:
        if os.getuid():
            with pytest.raises(NeedsHelpError, match="is not writable"):
                check_database(tmp_path / "a.db")
            return
        # Runs as another user, since the superuser may write anywhere.
        child = os.fork()
        if child == 0:
            os.setuid(NOBODY)
            try:
                check_database(tmp_path / "a.db")
            except NeedsHelpError as error:
                os._exit(0 if re.search("is not (writ|read)able", str(error)) else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        tmp_path.chmod(0o755)


def test_a_damaged_wal_is_named_and_what_was_shipped_stays(app: App, followed: Followed) -> None:
    shipper = followed.follow()
    app.do("INSERT INTO t VALUES (1, 0)")
    shipper.poll()
    app.do("INSERT INTO t VALUES (2, 0)")
    with open(f"{followed.database}-wal", "r+b") as file:
        file.seek(-10, os.SEEK_END)
        file.write(b"damage")
    with pytest.raises(NeedsHelpError, match=r"-wal is damaged: frame \d+ is not what SQLite wrote"):
        shipper.poll()
    assert followed.restored("SELECT x FROM t") == [1]


def test_a_wal_that_was_cut_short_is_named(app: App, followed: Followed) -> None:
    shipper = followed.follow()
    app.do("INSERT INTO t VALUES (1, 0)")
    os.truncate(f"{followed.database}-wal", 100)
    with pytest.raises(NeedsHelpError, match="it ends before frame"):
        shipper.poll()


def test_a_second_connector_of_one_database_is_refused(app: App, followed: Followed) -> None:
    followed.follow()
    with pytest.raises(NeedsHelpError, match=r"already follows"):
        ProgressFile(followed.database, patience_s=0.1)


def test_a_commit_can_wait_for_the_log(app: App, followed: Followed) -> None:
    with pytest.raises(NotShippedError, match="running"):
        wait_shipped(followed.database, timeout_s=0.05)
    shipper = followed.follow(checkpoint_bytes=1)
    assert wait_shipped(followed.database, timeout_s=5) == 0
    for number in range(1, 6):
        app.do(f"INSERT INTO t VALUES ({number}, 0)")
        with pytest.raises(NotShippedError):
            wait_shipped(followed.database, timeout_s=0.05)
        shipping = threading.Timer(0.05, shipper.poll)
        shipping.start()
        assert wait_shipped(followed.database, timeout_s=30) == number
        shipping.join()
    followed.leave()
    with pytest.raises(NotShippedError):
        wait_shipped(followed.database, timeout_s=0.05)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ottla", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_commands_ship_and_restore(app: App, tmp_path: Path, servers: str) -> None:
    command = [sys.executable, "-m", "ottla", "connect", "sqlite", str(tmp_path / "a.db"), "--log", "by-command"]
    with open(tmp_path / "connector.log", "wb") as output:
        connector = subprocess.Popen([*command, "--wal", servers], stdout=output, stderr=output)
    try:
        while "following" not in (tmp_path / "connector.log").read_text():
            assert connector.poll() is None, (tmp_path / "connector.log").read_text()
            time.sleep(0.05)
        app.do("INSERT INTO t VALUES (1, 0)")
        assert wait_shipped(tmp_path / "a.db", timeout_s=60) == 1
        connector.send_signal(signal.SIGTERM)
        assert connector.wait(60) == 0
    finally:
        if connector.poll() is None:
            connector.kill()
            connector.wait()
    target = tmp_path / "b.db"
    done = run("restore", "sqlite", "--log", "by-command", "--to", str(target), "--wal", servers, "--at", "1")
    assert done.returncode == 0, done.stderr
    assert "after transaction 1" in done.stdout
    unknown = run("restore", "sqlite", "--log", "nobody-knows", "--to", str(tmp_path / "c.db"), "--wal", servers)
    assert unknown.returncode == 1
    assert 'there is no log "nobody-knows"' in unknown.stderr
    wrong = run("restore", "sqlite", "--log", "by-command", "--to", str(target), "--at", "yesterday")
    assert wrong.returncode == 2
    assert "nor a transaction number" in " ".join(wrong.stderr.split())

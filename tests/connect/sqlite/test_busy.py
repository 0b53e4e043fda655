"""Programs that keep the database busy: the connector waits, and never lets the database go for that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ottla.connect.sqlite.history import read_part
from ottla.connect.sqlite.running import Shipping, ShippingSettings
from ottla.connect.sqlite.shipped import wait_shipped
from ottla.wal import LogSettings, SyncLog
from tests.connect.sqlite.app import App
from tests.connect.sqlite.followed import Followed


def wait_for(holds: Callable[[], bool], news: list[str]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, news
        time.sleep(0.01)


def test_a_program_that_writes_for_long_when_a_snapshot_is_due(app: App, followed: Followed) -> None:
    """If it let go, the WAL could be begun anew over what that program commits: a hole in the history."""
    news: list[str] = []
    told: list[str] = []
    stopping = threading.Event()
    settings = ShippingSettings(
        followed.database,
        lambda: SyncLog.open(followed.servers, followed.name, create=LogSettings(retention_ms=-1), fence=True),
        snapshot_every_s=0.2,
        busy_s=0.1,
    )
    failed: list[BaseException] = []

    def ship() -> None:
        try:
            Shipping(settings, news.append, stopping, waiting=told.append).run()
        except BaseException as failure:
            failed.append(failure)

    thread = threading.Thread(target=ship, daemon=True)
    thread.start()
    try:
        wait_for(lambda: any("follows" in each for each in news), news)
        app.do("INSERT INTO t VALUES (1, 0)")
        wait_shipped(followed.database, timeout_s=60)
        app.do("BEGIN IMMEDIATE", "INSERT INTO t VALUES (2, 0)")
        wait_for(lambda: bool(told or failed), news)
        assert not failed, failed
        assert "is locked by another program" in told[0]
        app.do("COMMIT", "PRAGMA wal_checkpoint(TRUNCATE)")
        for value in range(3, 8):
            app.do(f"INSERT INTO t VALUES ({value}, randomblob(5000))", "PRAGMA wal_checkpoint(TRUNCATE)")
        wait_shipped(followed.database, timeout_s=60)
    finally:
        stopping.set()
        thread.join(60)
    assert not failed, failed
    with SyncLog.open(followed.servers, followed.name) as log:
        parts = [read_part(entry.offset, entry.data) for entry in log.read(log.tail().start_offset)]
    assert len({part.generation for part in parts}) == 1, "the history has a hole"
    assert followed.restored("SELECT x FROM t ORDER BY x") == list(range(1, 8))

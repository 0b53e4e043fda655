"""Programs that keep the database busy, and brokers that are down: the connector waits without releasing the database.
Otherwise the WAL could be restarted over newly committed frames, which would leave a gap in the history."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from ottla.connect.sqlite.history import read_part
from ottla.connect.sqlite.shipping_loop import ShippingLoop, ShippingSettings
from ottla.connect.sqlite.shipping_progress import wait_shipped
from ottla.testing import Cluster
from ottla.wal import LogSettings, SyncLog
from ottla.wal.values import Limits
from tests.connect.sqlite.app import App
from tests.connect.sqlite.followed import Followed


class Ships:
    """Runs the connector's loop in a thread; a context manager."""

    def __init__(self, followed: Followed, servers: str, snapshot_every_s: float = 60.0) -> None:
        self._followed, self._servers = followed, servers
        self._settings = ShippingSettings(followed.database, self._open, snapshot_every_s=snapshot_every_s, busy_s=0.1)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.news: list[str] = []
        self.told: list[str] = []
        self.facts: list[dict[str, Any]] = []
        self.failed: list[BaseException] = []

    def _open(self) -> SyncLog:
        new, limits = LogSettings(retention_ms=-1), Limits(patience_s=0.5)
        return SyncLog.open(self._servers, self._followed.name, create=new, fence=True, limits=limits)

    def _run(self) -> None:
        try:
            shipping = ShippingLoop(
                self._settings, self.news.append, self._stopping, self.facts.append, self.told.append
            )
            shipping.run()
        except BaseException as failure:
            self.failed.append(failure)

    def wait_for(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert not self.failed, self.failed
            assert time.monotonic() < deadline, self.news
            time.sleep(0.01)

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for(lambda: any("following" in each for each in self.news))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self.failed, self.failed

    def generations(self) -> int:
        with SyncLog.open(self._servers, self._followed.name) as log:
            parts = [read_part(entry.offset, entry.data) for entry in log.read(log.tail().start_offset)]
        return len({part.generation for part in parts})


def commit_and_begin_anew(app: App) -> None:
    """Unless it is prevented, each checkpoint restarts the WAL."""
    for value in range(3, 8):
        app.do(f"INSERT INTO t VALUES ({value}, randomblob(5000))", "PRAGMA wal_checkpoint(TRUNCATE)")


def test_a_program_that_writes_for_long_when_a_snapshot_is_due(app: App, followed: Followed) -> None:
    with Ships(followed, followed.servers, snapshot_every_s=0.2) as ships:
        app.do("INSERT INTO t VALUES (1, 0)")
        wait_shipped(followed.database, timeout_s=60)
        app.do("BEGIN IMMEDIATE", "INSERT INTO t VALUES (2, 0)")
        ships.wait_for(lambda: bool(ships.told))
        assert "is locked by another program" in ships.told[0]
        app.do("COMMIT")
        commit_and_begin_anew(app)
        wait_shipped(followed.database, timeout_s=60)
    assert ships.generations() == 1
    assert followed.restored("SELECT x FROM t ORDER BY x") == list(range(1, 8))


def test_brokers_that_are_away_for_a_while(app: App, followed: Followed) -> None:
    with Cluster(wal=True) as brokers:
        followed.servers = brokers.wal_servers
        with Ships(followed, brokers.wal_servers) as ships:
            app.do("INSERT INTO t VALUES (1, 0)")
            assert wait_shipped(followed.database, timeout_s=60) == 1
            brokers.kill()
            app.do("INSERT INTO t VALUES (2, 0)")
            ships.wait_for(lambda: bool(ships.told))
            assert "cannot write to the log" in ships.told[0]
            commit_and_begin_anew(app)
            brokers.start()
            assert wait_shipped(followed.database, timeout_s=60) == 7
            ships.wait_for(lambda: ships.facts[-1]["transaction"] == 7)
            assert ships.facts[-1]["behind_bytes"] == 0
        assert ships.generations() == 1
        assert followed.restored("SELECT x FROM t ORDER BY x") == list(range(1, 8))

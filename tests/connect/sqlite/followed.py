"""A database that is followed step by step, in the test's process, with the real log and the real locks."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from ottla.connect.sqlite.history import last_item, snapshots
from ottla.connect.sqlite.restore import RestorePoint, restore
from ottla.connect.sqlite.shipper import Shipper
from ottla.connect.sqlite.shipping_progress import ProgressFile
from ottla.connect.sqlite.source import Source
from ottla.wal import LogSettings, SyncLog


class Followed:
    def __init__(self, database: Path, servers: str, name: str) -> None:
        self.database = database
        self.servers = servers
        self.name = name
        self.news: list[str] = []
        self.shipper: Shipper | None = None
        self._restored = 0

    def follow(self, checkpoint_bytes: int = 1 << 40) -> Shipper:
        self.source = Source(self.database, busy_s=0.5)
        self.progress = ProgressFile(self.source.path)
        self.log = SyncLog.open(self.servers, self.name, create=LogSettings(retention_ms=-1), fence=True)
        self.shipper = Shipper(self.source, self.log, self.news.append, self.progress.write, checkpoint_bytes)
        self.shipper.start()
        return self.shipper

    def leave(self) -> None:
        """Stops as a killed process does: nothing more is shipped, and the locks are released."""
        if self.shipper is not None:
            self.source.close()
            self.progress.close()
            self.log.close()
            self.shipper = None

    def generations(self) -> int:
        """The number of snapshots in the log."""
        with SyncLog.open(self.servers, self.name) as log:
            last = last_item(log)
            return 0 if last is None else len(list(snapshots(log, last)))

    def restore(self, at: int | None = None) -> Path:
        self._restored += 1
        target = self.database.with_name(f"restored-{self._restored}.db")
        with SyncLog.open(self.servers, self.name) as log:
            restore(log, target, RestorePoint(transaction=at))
        return target

    def restored(self, sql: str, at: int | None = None) -> list[Any]:
        """Returns the first column of a query on the restored database."""
        with closing(sqlite3.connect(self.restore(at))) as connection:
            return [row[0] for row in connection.execute(sql)]

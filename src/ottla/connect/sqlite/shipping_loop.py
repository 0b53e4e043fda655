"""Replicates a database until it is stopped: opens the log, ships transactions, and retries after temporary
failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ottla.connect.failures import ConnectorError, NeedsHelpError
from ottla.connect.log_ports import SyncWritableLog
from ottla.connect.sqlite.failures import SourceChangedError
from ottla.connect.sqlite.retention import trim_history
from ottla.connect.sqlite.shipper import CHECKPOINT_BYTES, News, Shipper
from ottla.connect.sqlite.shipping_progress import ProgressFile
from ottla.connect.sqlite.source import BUSY_S, Source
from ottla.wal import FencedError, SyncLog, UnavailableError, UnexpectedEndError, UnknownOutcomeError

DAY_S = 86_400.0
_BUSY_PAUSE_S = 0.001
_IDLE_PAUSE_S = 0.02
_FILES_EVERY_S = 1.0
_PROGRESS_EVERY_S = 1.0
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.2, 10.0
_PASSING = (UnavailableError, UnknownOutcomeError, UnexpectedEndError)


@dataclass(frozen=True, slots=True)
class ShippingSettings:
    """The settings of a replicated database."""

    database: Path
    open_log: Callable[[], SyncLog]
    """Opens the log as its single writer."""
    snapshot_every_s: float = DAY_S
    keep_s: float | None = 7 * DAY_S
    """Any point within this time can be restored; None keeps everything."""
    checkpoint_bytes: int = CHECKPOINT_BYTES
    wal_bytes_max: int = 4 << 30
    """Limit on the WAL while the log is unreachable. Beyond it the database is released, and the history has a hole."""
    busy_s: float = BUSY_S
    """How long to wait for another program's lock."""


class ShippingLoop:
    """Runs a shipper and restarts it after failures.

    `news` receives messages for the operator, `progress` the current position about once a second, and `waiting` the
    reason for a retry.
    """

    def __init__(
        self,
        settings: ShippingSettings,
        news: News,
        stopping: threading.Event,
        progress: Callable[[dict[str, Any]], None] = lambda facts: None,
        waiting: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._settings = settings
        self._news = news
        self._stopping = stopping
        self._progress = progress
        self._waiting = waiting
        self._source: Source | None = None
        self._retry_s = _FIRST_RETRY_S

    def run(self) -> None:
        """Runs until `stopping` is set. Raises NeedsHelpError if an operator has to do something."""
        self._source = Source(self._settings.database, self._settings.busy_s)
        progress = ProgressFile(self._source.path)
        try:
            while not self._stopping.is_set():
                self._run_once(progress)
        finally:
            progress.close()
            if self._source is not None:
                self._source.close()

    def _run_once(self, progress: ProgressFile) -> None:
        try:
            if self._source is None:
                self._source = Source(self._settings.database, self._settings.busy_s)
            self._ship(self._source, progress)
        except SourceChangedError as change:
            progress.forget()
            self._news(f"{change}. Reopening the database")
            self._waiting(str(change))
            self._let_go()
            self._pause()
        except NeedsHelpError:
            raise
        except ConnectorError as trouble:
            # Another program writes for a long time. Keep the database open: after a release, its transactions could be
            # missed.
            self._news(f"{trouble}. Retrying")
            self._waiting(str(trouble))
            self._bound_wal(progress)
            self._pause()
        except FencedError as error:
            raise NeedsHelpError(f"another connector has taken over the log; this one stops ({error})") from error
        except _PASSING as error:
            self._news(f"cannot write to the log ({error}). Retrying")
            self._waiting(f"cannot write to the log ({error})")
            self._bound_wal(progress)
            self._pause()

    def _ship(self, source: Source, progress: ProgressFile) -> None:
        log = self._settings.open_log()
        try:
            shipper = Shipper(source, log, self._news, progress.write, self._settings.checkpoint_bytes)
            shipper.start()
            self._news(f"following {source.path}; transaction {shipper.transaction} is in the log")
            self._retry_s = _FIRST_RETRY_S
            self._loop(source, shipper, log)
        finally:
            log.close()

    def _loop(self, source: Source, shipper: Shipper, log: SyncLog) -> None:
        look_at_files = snapshots_at = progress_at = 0.0
        pause_s = _BUSY_PAUSE_S
        while not self._stopping.is_set():
            is_busy = shipper.poll()
            now_s = time.monotonic()
            if now_s > progress_at:
                self._progress(shipper.facts())
                progress_at = now_s + _PROGRESS_EVERY_S
            if is_busy:
                pause_s = _BUSY_PAUSE_S
                continue
            if now_s > look_at_files:
                source.check_files()
                look_at_files = now_s + _FILES_EVERY_S
            if now_s > snapshots_at:
                self._look_after_history(shipper, log)
                snapshots_at = now_s + min(60.0, self._settings.snapshot_every_s)
            self._stopping.wait(pause_s)
            pause_s = min(_IDLE_PAUSE_S, pause_s * 1.2)
        shipper.poll()  # ship what was committed before the stop

    def _look_after_history(self, shipper: Shipper, log: SyncWritableLog) -> None:
        snapshot_s = shipper.newest_snapshot_s()
        if snapshot_s is None:
            self._news("retention.ms of the log has deleted its last snapshot; set it to -1. Taking another snapshot")
            shipper.snapshot()
        elif time.time() - snapshot_s > self._settings.snapshot_every_s and shipper.has_shipped_since_snapshot:
            shipper.snapshot()
        if self._settings.keep_s is not None:
            before = trim_history(log, int((time.time() - self._settings.keep_s) * 1000))
            if before is not None:
                self._news(f"removed the history before the snapshot at offset {before}")

    def _bound_wal(self, progress: ProgressFile) -> None:
        if self._source is not None and self._source.wal_bytes() > self._settings.wal_bytes_max:
            self._news(
                f"the WAL has grown to {self._source.wal_bytes()} bytes while the log could not be written; "
                "releasing the database. Its history will have a gap"
            )
            progress.forget()
            self._let_go()

    def _let_go(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def _pause(self) -> None:
        self._stopping.wait(self._retry_s)
        self._retry_s = min(_LONGEST_RETRY_S, self._retry_s * 2)

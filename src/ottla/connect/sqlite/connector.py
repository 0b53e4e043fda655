"""The connector `sqlite`: replicates a database in a thread, in a process of its own.

SQLite's locks belong to the process, so no other part of this process may open the database.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ottla.connect.configuration import DEFAULT_WAL
from ottla.connect.contract import Reports
from ottla.connect.failures import ConnectorError, NeedsHelpError
from ottla.connect.operator_messages import say
from ottla.connect.sqlite.shipper import CHECKPOINT_BYTES
from ottla.connect.sqlite.shipping_loop import ShippingLoop, ShippingSettings
from ottla.protocol.model.durations import duration_ms
from ottla.wal import LogSettings, SyncLog, WalError
from ottla.wal.values import Limits

REQUIRED = ("database", "log")
OPTIONAL = ("wal", "replicas", "durability", "snapshot_every", "keep", "checkpoint_mb", "wal_mb_max")
_PATIENCE_S = 10.0


def build(name: str, settings: Mapping[str, Any], bootstrap: str) -> SqliteConnector:
    """Creates the connector from its settings."""
    wal, log = settings.get("wal") or DEFAULT_WAL, settings["log"]
    new = LogSettings(replicas=settings.get("replicas"), durability=settings.get("durability"), retention_ms=-1)
    keep = settings.get("keep") or "7d"
    return SqliteConnector(
        ShippingSettings(
            Path(settings["database"]),
            lambda: SyncLog.open(wal, log, create=new, fence=True, limits=Limits(patience_s=_PATIENCE_S)),
            snapshot_every_s=_seconds(settings.get("snapshot_every") or "1d", "snapshot_every"),
            keep_s=None if keep == "all" else _seconds(keep, "keep"),
            checkpoint_bytes=int(settings.get("checkpoint_mb") or CHECKPOINT_BYTES >> 20) << 20,
            wal_bytes_max=int(settings.get("wal_mb_max") or 4096) << 20,
        )
    )


def _seconds(text: str, setting: str) -> float:
    found = duration_ms(text)
    if not found:
        raise NeedsHelpError(f'"{text}" is not a duration; {setting} takes 90s, 10m, 2h or 7d')
    return found / 1000


class SqliteConnector:
    """Implements `ottla.connect.contract.Follower`."""

    def __init__(self, settings: ShippingSettings) -> None:
        self._settings = settings

    async def follow(self, stopping: asyncio.Event, reports: Reports) -> None:
        loop, ended = asyncio.get_running_loop(), threading.Event()

        def progress(facts: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(reports.progress, facts)

        def waiting(reason: str) -> None:
            loop.call_soon_threadsafe(reports.waiting, reason)

        shipping = asyncio.ensure_future(
            asyncio.to_thread(ShippingLoop(self._settings, say, ended, progress, waiting).run)
        )
        stopped = asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait([shipping, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            ended.set()
        try:
            await shipping
        except WalError as failure:
            raise ConnectorError(f"the log cannot be used: {failure}") from failure

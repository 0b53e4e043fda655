"""Trims a log after a snapshot: removes the records that no kept snapshot needs."""

from __future__ import annotations

import asyncio
from typing import Protocol

from ottla.recovery.logs import LogTail
from ottla.recovery.snapshots import SnapshotStore


class TrimmableLog(Protocol):
    """A log that can be trimmed."""

    async def tail(self) -> LogTail:
        """Returns the current start and end of the log."""
        ...

    async def trim(self, before: int) -> object:
        """Deletes the entries before this offset."""
        ...


async def trim_log(log: TrimmableLog, snapshots: SnapshotStore) -> int | None:
    """Trims the log and returns its new start offset, or None if nothing can be removed yet.

        store.publish(applier.dump(), position)
        await trim_log(log, store)

    All kept snapshots are first read completely, in a thread, so a trim takes as long as a restart.
    """
    before = await asyncio.to_thread(snapshots.trim_offset)
    if before is None or before <= (await log.tail()).start_offset:
        return None
    await log.trim(before)
    return before

"""Trim by the application: after a snapshot, the log gives up what no kept snapshot needs."""

from __future__ import annotations

import asyncio
from typing import Protocol

from ottla.recovery.logs import LogTail
from ottla.recovery.snapshots import SnapshotStore


class TrimmableLog(Protocol):
    async def tail(self) -> LogTail: ...
    async def trim(self, before: int) -> object: ...


async def trim_log(log: TrimmableLog, snapshots: SnapshotStore) -> int | None:
    """The offset before which the log was cut; None if nothing can go yet.

    All kept snapshots are read to the end first, so it takes as long as a restart would, in a thread.
    """
    before = await asyncio.to_thread(snapshots.trim_offset)
    if before is None or before <= (await log.tail()).start_offset:
        return None
    await log.trim(before)
    return before

"""Paces the catch-up lane: the next round begins when this broker's disk has taken the last one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from ottla.broker.cluster.replication_lanes import Pace

if TYPE_CHECKING:
    from ottla.broker.partition.partition import Partition

FLUSH_EVERY_BYTES = 16 * 1024 * 1024
"""Unsynced bytes after which a lagging replica flushes: one long sync would delay the journal of the live ones."""
FLUSH_WAIT_S = 10.0
DISK_WAIT_S = 1.0
"""A lagging partition continues after this time in any case: its disk may be slow, or its log may have failed."""

Key = tuple[UUID, int]
Flush = Callable[["Iterable[Partition]", Callable[[], None]], None]
"""Syncs the files of these partitions' logs, and calls back when done."""


class CatchUp:
    """The rounds of one fetcher of lagging partitions."""

    __slots__ = ("_disk_took_some", "_flush", "_pace", "_unflushed_bytes")

    def __init__(self, flush: Flush | None = None) -> None:
        self._flush = flush
        self._unflushed_bytes = 0
        self._pace = Pace()
        self._disk_took_some = asyncio.Event()

    @property
    def round_bytes(self) -> int:
        """The number of bytes to fetch in the next round."""
        return self._pace.round_bytes

    def on_progress(self) -> None:
        """Notes that the disk has taken records, or that a partition was removed."""
        self._disk_took_some.set()

    async def end_round(
        self, followed: Mapping[Key, Partition], size_bytes: int, lag_bytes: int, now_ms: float
    ) -> None:
        """Waits until the disk has the records of a round. They are queued to the disk before the next records of live
        partitions. `lag_bytes` is the remaining lag of the partitions that are not throttled."""
        self._unflushed_bytes += size_bytes
        self._pace.note(lag_bytes, now_ms)
        await self._until_written(followed)
        await self._until_flushed(followed)

    async def _until_written(self, followed: Mapping[Key, Partition]) -> None:
        ends = {key: partition.log.end_offset for key, partition in followed.items()}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISK_WAIT_S):
                while any(_is_unwritten(followed.get(key), end) for key, end in ends.items()):
                    self._disk_took_some.clear()
                    await self._disk_took_some.wait()

    async def _until_flushed(self, followed: Mapping[Key, Partition]) -> None:
        if self._unflushed_bytes < FLUSH_EVERY_BYTES or self._flush is None:
            return
        self._unflushed_bytes = 0
        flushed = asyncio.Event()
        self._flush(list(followed.values()), flushed.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_WAIT_S):
                await flushed.wait()


def _is_unwritten(partition: Partition | None, end: int) -> bool:
    return partition is not None and partition.log.failed is None and partition.log.acknowledged_end < end

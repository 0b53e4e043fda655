"""Looks up the offsets of a partition by timestamp.

The lookups read segment files on a disk thread, so they wait until everything is written.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from ottla.broker.blocking_jobs import resolve, run_blocking
from ottla.broker.storage.any_log import AnyLog
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.file_reads import TimedOffset, find_max_timestamp, find_offset_for_time
from ottla.broker.storage.memory_log import MemoryLog
from ottla.broker.storage.segment import held


class ReadablePartition(Protocol):
    """A partition whose log is read up to its high watermark."""

    @property
    def log(self) -> AnyLog:
        """The log that is searched."""
        ...

    @property
    def high_watermark(self) -> int:
        """The exclusive end of what consumers may read."""
        ...


async def offset_for_time(partition: ReadablePartition, timestamp_ms: int) -> TimedOffset | None:
    """Returns the first record at or after a time that consumers may read."""
    log = partition.log
    if isinstance(log, MemoryLog):
        return log.offset_for_time(timestamp_ms)
    await _written(log)
    watermark = partition.high_watermark
    with held(log.segments) as segments:
        found = await run_blocking(
            log.shared.disk.read_queue, lambda: find_offset_for_time(log, segments, timestamp_ms)
        )
    return found if found is not None and found.offset < watermark else None


async def max_timestamp_offset(log: AnyLog) -> TimedOffset | None:
    """Returns the record with the highest timestamp."""
    if isinstance(log, MemoryLog):
        return log.max_timestamp()
    await _written(log)
    with held(log.segments) as segments:
        return await run_blocking(log.shared.disk.read_queue, lambda: find_max_timestamp(segments))


async def _written(log: FileLog) -> None:
    """Waits until all appended records are written to files."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    log.writer.when_written(log.end_offset, lambda: resolve(done, None))
    await done

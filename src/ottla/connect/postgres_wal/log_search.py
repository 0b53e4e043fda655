"""Finds entries in the log: the first, the last, and the entry that contains an LSN.

Not every offset has an entry (fenced writers leave markers), so a lookup reads on until it finds one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from ottla.connect.log_ports import ReadableLog
from ottla.connect.postgres_wal.entries import Entry, decode
from ottla.connect.postgres_wal.positions import Lsn, TimelineId
from ottla.wal import Entry as Record

HOLE_MAX = 4096


@dataclass(frozen=True, slots=True)
class LocatedEntry:
    """An entry and its offset."""

    offset: int
    entry: Entry


async def entries(log: ReadableLog, first: int, until: int | None = None) -> AsyncGenerator[LocatedEntry, None]:
    """Yields entries in order, up to the current end of the log."""
    # Closing an iterator that is abandoned early ends its outstanding call to the broker.
    reading = cast("AsyncGenerator[Sequence[Record], None]", log.read_chunks(first, until))
    async with aclosing(reading) as chunks:
        async for chunk in chunks:
            for record in chunk:
                yield LocatedEntry(record.offset, decode(record.data))


async def first_at(log: ReadableLog, offset: int, until: int) -> LocatedEntry | None:
    """Returns the first entry at or after an offset."""
    width = 1
    while offset < until:
        end = min(offset + width, until)
        async with aclosing(entries(log, offset, end)) as found:
            async for placed in found:
                return placed
        offset, width = end, min(width * 4, HOLE_MAX)
    return None


async def last_entry(log: ReadableLog) -> LocatedEntry | None:
    """Returns the last entry, or None if the log has none."""
    tail = await log.tail()
    first, end = tail.end_offset - 1, tail.end_offset
    while end > tail.start_offset:
        first = max(first, tail.start_offset)
        found = [placed async for placed in entries(log, first, end)]
        if found:
            return found[-1]
        first, end = first - 4 * (end - first), first
    return None


async def first_entry(log: ReadableLog) -> LocatedEntry | None:
    """Returns the first entry, or None if the log has none."""
    tail = await log.tail()
    return await first_at(log, tail.start_offset, tail.end_offset)


async def offset_of(log: ReadableLog, timeline: TimelineId, lsn: Lsn) -> int | None:
    """Returns the offset of the last entry whose key is at most (timeline, lsn). Reading from there misses nothing
    after it.

    Returns None if the log begins after that key.
    """
    tail = await log.tail()
    low, high, found = tail.start_offset, tail.end_offset, None
    while low < high:
        middle = (low + high) // 2
        placed = await first_at(log, middle, high)
        if placed is None or placed.entry.key > (timeline, lsn):
            high = middle
        else:
            found, low = placed.offset, placed.offset + 1
    return found

"""Places in the log: its first and last entry, and the entry that holds an LSN.

Offsets of the log have holes (the marks of writers that were fenced), so a lookup reads on until it finds an entry.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from ottla.connect.postgres_wal.entries import Entry, Kind, decode
from ottla.connect.postgres_wal.log_port import ReadableLog, Record
from ottla.connect.postgres_wal.positions import Lsn, TimelineId

HOLE_MAX = 4096


@dataclass(frozen=True, slots=True)
class Placed:
    offset: int
    entry: Entry


async def entries(log: ReadableLog, first: int, until: int | None = None) -> AsyncGenerator[Placed, None]:
    """In order, up to the end as of now."""
    # A reading that is left early is a call to a broker still; closing it ends the call.
    reading = cast("AsyncGenerator[Sequence[Record], None]", log.read_chunks(first, until))
    async with aclosing(reading) as chunks:
        async for chunk in chunks:
            for record in chunk:
                yield Placed(record.offset, decode(record.data))


async def first_at(log: ReadableLog, offset: int, until: int) -> Placed | None:
    """The first entry from an offset on."""
    width = 1
    while offset < until:
        end = min(offset + width, until)
        async with aclosing(entries(log, offset, end)) as found:
            async for placed in found:
                return placed
        offset, width = end, min(width * 4, HOLE_MAX)
    return None


async def last_entry(log: ReadableLog) -> Placed | None:
    tail = await log.tail()
    first, end = tail.end_offset - 1, tail.end_offset
    while end > tail.start_offset:
        first = max(first, tail.start_offset)
        found = [placed async for placed in entries(log, first, end)]
        if found:
            return found[-1]
        first, end = first - 4 * (end - first), first
    return None


async def first_entry(log: ReadableLog) -> Placed | None:
    tail = await log.tail()
    return await first_at(log, tail.start_offset, tail.end_offset)


async def offset_of(log: ReadableLog, timeline: TimelineId, lsn: Lsn) -> int | None:
    """The offset of the last entry whose key is not after (timeline, lsn): reading from there on misses nothing of it.

    None if the log begins after it.
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


async def histories(log: ReadableLog) -> dict[TimelineId, bytes]:
    """Every timeline's history file. Reads one entry a timeline, not the log."""
    found: dict[TimelineId, bytes] = {}
    tail = await log.tail()
    offset = tail.start_offset
    while (placed := await first_at(log, offset, tail.end_offset)) is not None:
        timeline = placed.entry.timeline
        if placed.entry.kind is Kind.HISTORY:
            found[timeline] = bytes(placed.entry.data)
        last = await offset_of(log, timeline, Lsn(2**64 - 1))
        offset = (placed.offset if last is None else last) + 1
    return found

"""Builds WAL files from the log for the `restore_command` of a recovering server.

A server takes "no such file" for the end of all WAL and opens the database. So that answer is given only if the log has
no more of the timeline. A gap, an unresponsive broker or an internal error raises instead.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import BinaryIO

from ottla.connect.log_ports import ReadableLog
from ottla.connect.postgres_wal.entries import Kind
from ottla.connect.postgres_wal.log_search import first_at, first_entry, offset_of
from ottla.connect.postgres_wal.pieces import GapError, wal_pieces
from ottla.connect.postgres_wal.positions import Lsn, Segment, TimelineId, lsn_text
from ottla.connect.postgres_wal.timelines import History, TimelineRange, first_history, parse_history


async def history_file(log: ReadableLog, timeline: TimelineId) -> bytes | None:
    """Returns the history file of a timeline; None if the log has none."""
    tail = await log.tail()
    before = await offset_of(log, TimelineId(timeline - 1), Lsn(2**64 - 1))
    first = tail.start_offset if before is None else before + 1
    placed = await first_at(log, first, tail.end_offset)
    if placed is None or placed.entry.timeline != timeline or placed.entry.kind is not Kind.HISTORY:
        return None
    return bytes(placed.entry.data)


async def history_in_log(log: ReadableLog, timeline: TimelineId) -> History | None:
    """Returns the history that leads to a timeline, as far back as the log goes; None if the log does not have the
    timeline."""
    first = await first_entry(log)
    if first is None or timeline < first.entry.timeline:
        return None
    text = await history_file(log, timeline)
    if text is None:
        return first_history(timeline) if timeline == first.entry.timeline else None
    return since(parse_history(timeline, text), first.entry.timeline)


def since(history: History, oldest: TimelineId) -> History:
    """Drops timelines before `oldest`, the log's first timeline, and lets `oldest` stand for its ancestors too.

    A server on timeline 3 sends the whole segment in which timeline 3 begins, and that segment starts with WAL of
    timeline 2.
    """
    kept = [each for each in history.stretches if each.timeline >= oldest]
    if kept and kept[0].timeline == oldest:
        kept[0] = TimelineRange(oldest, Lsn(0), kept[0].end)
    return History(tuple(kept))


async def write_segment(log: ReadableLog, segment: Segment, out: BinaryIO, *, up_to_gap: bool = False) -> bool:
    """Writes a segment, with zeros after the end of the log. Returns False if the log has none of it.

    With `up_to_gap`, a gap counts as the end. This is for a server with a recovery target, which fails if it does not
    reach the target.
    """
    history = await history_in_log(log, segment.timeline)
    if history is None:
        return False
    pieces = list(history.pieces(segment.first_lsn, segment.end_lsn))
    if not pieces or pieces[-1][0] != segment.timeline:
        return False
    written = segment.first_lsn
    for timeline, low, high in pieces:
        reached = low
        async with aclosing(wal_pieces(log, timeline, low, high, up_to_gap=up_to_gap)) as found:
            async for piece in found:
                out.write(piece.data)
                reached = piece.end
        if timeline != segment.timeline and reached < high:
            raise GapError(f"the log ends at {lsn_text(reached)} on timeline {timeline}, before {lsn_text(high)}")
        if timeline == segment.timeline and reached == low:
            return False
        written = reached
    out.write(bytes(segment.end_lsn - written))
    return True

"""WAL files made from the log: what `restore_command` gives to a server that recovers.

A server takes "there is no such file" for the end of all WAL and opens for business. So that answer is given only when
the log has no more of that timeline; a gap, a broker that does not answer or a fault of ours is an error instead.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import BinaryIO

from ottla.connect.postgres_wal.entries import Kind
from ottla.connect.postgres_wal.log_port import ReadableLog
from ottla.connect.postgres_wal.log_search import first_at, first_entry, offset_of
from ottla.connect.postgres_wal.pieces import GapError, wal_pieces
from ottla.connect.postgres_wal.positions import Lsn, Segment, TimelineId, lsn_text
from ottla.connect.postgres_wal.timelines import History, Stretch, first_history, parse_history


async def history_file(log: ReadableLog, timeline: TimelineId) -> bytes | None:
    """The history file of a timeline; None if the log has none."""
    tail = await log.tail()
    before = await offset_of(log, TimelineId(timeline - 1), Lsn(2**64 - 1))
    first = tail.start_offset if before is None else before + 1
    placed = await first_at(log, first, tail.end_offset)
    if placed is None or placed.entry.timeline != timeline or placed.entry.kind is not Kind.HISTORY:
        return None
    return bytes(placed.entry.data)


async def history_in_log(log: ReadableLog, timeline: TimelineId) -> History | None:
    """How WAL leads to a timeline, as far as the log has it; None if it does not have the timeline."""
    first = await first_entry(log)
    if first is None or timeline < first.entry.timeline:
        return None
    text = await history_file(log, timeline)
    if text is None:
        return first_history(timeline) if timeline == first.entry.timeline else None
    return since(parse_history(timeline, text), first.entry.timeline)


def since(history: History, oldest: TimelineId) -> History:
    """Where the log begins with a timeline, what it has of it stands for its ancestors' too.

    A server that is on timeline 3 sends the whole segment in which timeline 3 begins, which starts with WAL of
    timeline 2.
    """
    kept = [each for each in history.stretches if each.timeline >= oldest]
    if kept and kept[0].timeline == oldest:
        kept[0] = Stretch(oldest, Lsn(0), kept[0].end)
    return History(tuple(kept))


async def write_segment(log: ReadableLog, segment: Segment, out: BinaryIO, *, up_to_gap: bool = False) -> bool:
    """Writes the segment's bytes, zeros after the end of the log. False if the log has nothing of it.

    With `up_to_gap` a gap counts as the end: for a server that knows where to stop and fails if it does not get there.
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

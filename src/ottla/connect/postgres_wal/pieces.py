"""WAL of one timeline out of the log, piece after piece, each beginning where the one before it ends.

Whoever restores, and whoever says that it could be restored, walks over the log in this one way. So a gap is one for
both, or for none.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from ottla.connect.postgres_wal.entries import Entry, Kind
from ottla.connect.postgres_wal.failures import PostgresError
from ottla.connect.postgres_wal.log_port import ReadableLog
from ottla.connect.postgres_wal.log_search import entries, offset_of
from ottla.connect.postgres_wal.positions import Lsn, TimelineId, lsn_text


class GapError(PostgresError):
    """The log should have this WAL and does not."""


@dataclass(frozen=True, slots=True)
class Piece:
    start: Lsn
    data: memoryview
    sent_unix_us: int
    """When the server sent the entry that it is of."""

    @property
    def end(self) -> Lsn:
        return Lsn(self.start + len(self.data))


async def wal_pieces(
    log: ReadableLog, timeline: TimelineId, low: Lsn, high: Lsn, *, up_to_gap: bool = False
) -> AsyncGenerator[Piece, None]:
    """From `low` up to `high`, or to the end of the timeline in the log: the caller sees which from the last piece.

    Raises GapError at a gap, which ends it if `up_to_gap`; and if the log begins after `low`, in any case.
    """
    first = await offset_of(log, timeline, low)
    if first is None:
        raise GapError(await _begins_late(log, timeline, low))
    reached, before = low, first
    async with aclosing(entries(log, first)) as found:
        async for placed in found:
            entry = placed.entry
            if placed.offset == first and entry.key > (timeline, low):
                raise GapError(f"the log is not in order: offset {first} holds {_told(entry)}")
            if entry.timeline > timeline or reached >= high:
                return
            if entry.timeline == timeline and entry.kind is not Kind.HISTORY and entry.end > reached:
                if entry.start > reached:
                    if up_to_gap:
                        return
                    raise GapError(
                        f"the log has no WAL between {lsn_text(reached)} and {lsn_text(entry.start)} of timeline "
                        f"{timeline} (its offset {before} is before that, {placed.offset} after it)"
                    )
                data = memoryview(entry.data)[reached - entry.start : high - entry.start]
                piece = Piece(reached, data, entry.sent_unix_us)
                reached = piece.end
                yield piece
            before = placed.offset


async def _begins_late(log: ReadableLog, timeline: TimelineId, low: Lsn) -> str:
    start = (await log.tail()).start_offset
    return (
        f"the log has been trimmed: it begins with offset {start}, after {lsn_text(low)} of timeline {timeline}. If "
        "what was before it was archived (ottla pipeline archive), name the archive: --archive"
    )


def _told(entry: Entry) -> str:
    return f"{lsn_text(entry.start)} of timeline {entry.timeline}"

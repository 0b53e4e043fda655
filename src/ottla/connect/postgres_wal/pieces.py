"""Reads the WAL of one timeline from the log as contiguous pieces.

Both the restore and the check whether a restore is possible read the log through this module, so they agree on what is
a gap.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from ottla.connect.log_ports import ReadableLog
from ottla.connect.postgres_wal.entries import Entry, Kind
from ottla.connect.postgres_wal.failures import PostgresError
from ottla.connect.postgres_wal.log_search import entries, offset_of
from ottla.connect.postgres_wal.positions import Lsn, TimelineId, lsn_text


class GapError(PostgresError):
    """The log lacks WAL that it should have."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A contiguous piece of WAL."""

    start: Lsn
    data: memoryview
    sent_unix_us: int
    """When the server sent the entry that contains the piece."""

    @property
    def end(self) -> Lsn:
        """The LSN after the last byte."""
        return Lsn(self.start + len(self.data))


async def wal_pieces(
    log: ReadableLog, timeline: TimelineId, low: Lsn, high: Lsn, *, up_to_gap: bool = False
) -> AsyncGenerator[Piece, None]:
    """Yields pieces from `low` to `high`, or to the end of the timeline in the log, whichever is first.

    Raises GapError at a gap, unless `up_to_gap` is set, which ends the iteration there. Always raises GapError if the
    log begins after `low`.
    """
    first = await offset_of(log, timeline, low)
    if first is None:
        raise GapError(await _begins_late(log, timeline, low))
    reached, before = low, first
    async with aclosing(entries(log, first)) as found:
        async for placed in found:
            entry = placed.entry
            if placed.offset == first and entry.key > (timeline, low):
                raise GapError(f"the log is out of order: offset {first} holds {_told(entry)}")
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
        f"the log was trimmed: it starts at offset {start}, after {lsn_text(low)} of timeline {timeline}. If "
        "the earlier records were archived (ottla pipeline archive), choose the archive with --archive"
    )


def _told(entry: Entry) -> str:
    return f"{lsn_text(entry.start)} of timeline {entry.timeline}"

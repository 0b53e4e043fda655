"""Decides where to resume the stream by comparing the log with the server. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.connect.postgres_wal.entries import Entry
from ottla.connect.postgres_wal.failures import RefusedError
from ottla.connect.postgres_wal.positions import Lsn, TimelineId, lsn_text, segment_start
from ottla.connect.postgres_wal.server import Identity
from ottla.connect.postgres_wal.timelines import History


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The position of the log's last entry."""

    system_id: int
    timeline: TimelineId
    end: Lsn

    @classmethod
    def of(cls, last: Entry) -> LogEnd:
        """Returns the position after this entry, which must be the last one of the log."""
        return cls(last.system_id, last.timeline, last.end)


@dataclass(frozen=True, slots=True)
class StreamStart:
    """The timeline to stream and where to start. If `is_new`, its history is written to the log first."""

    timeline: TimelineId
    start: Lsn
    is_new: bool
    left_out: int = 0  # bytes of the log's timeline that are not part of the server's history


def first_step(identity: Identity, restart_lsn: Lsn | None, segment_bytes: int) -> StreamStart:
    """Returns the first step for an empty log. It starts at a segment boundary, so that segments are complete."""
    start = segment_start(identity.flushed if restart_lsn is None else restart_lsn, segment_bytes)
    return StreamStart(identity.timeline, start, is_new=identity.timeline > 1)


def next_step(end: LogEnd, identity: Identity, history: History | None) -> StreamStart:
    """Returns the next step for a log that ends at `end`. Raises RefusedError.

    `history` is the history of the server's timeline, if that differs from the log's.
    """
    if end.system_id != identity.system_id:
        raise RefusedError(
            f"this log contains the WAL of another database (system id {end.system_id}, this server has "
            f"{identity.system_id}). Databases cannot share a log; choose another one with --log"
        )
    if identity.timeline < end.timeline:
        raise RefusedError(
            f"the log has moved on to timeline {end.timeline}, but this server is still on timeline "
            f"{identity.timeline}: it was replaced by a restored server, and its WAL is rejected. Connect to "
            "the new server, and stop this one; or, to keep the WAL of both, choose another log with --log"
        )
    if identity.timeline == end.timeline:
        if identity.flushed < end.end:
            raise RefusedError(
                f"the server has lost WAL that the log has: it ends at {lsn_text(identity.flushed)}, the log "
                f"at {lsn_text(end.end)}. Do not continue with this server; restore the lost WAL from the log: "
                "ottla restore postgres --to DIRECTORY"
            )
        return StreamStart(end.timeline, end.end, is_new=False)
    stretch = None if history is None else history.stretch_of(end.timeline)
    if history is None or stretch is None or stretch.end is None:
        raise RefusedError(
            f"the server is on timeline {identity.timeline}, which does not descend from timeline "
            f"{end.timeline} of the log. Choose another log with --log, and take a new backup"
        )
    if end.end < stretch.end:
        return StreamStart(end.timeline, end.end, is_new=False)
    follower = history.stretches[history.stretches.index(stretch) + 1]
    return StreamStart(follower.timeline, follower.begin, is_new=True, left_out=end.end - stretch.end)

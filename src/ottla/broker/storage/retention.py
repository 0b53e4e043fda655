"""Finds the expired segments of a file log and removes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from ottla.broker.storage.segment import Segment
from ottla.reach import branch

if TYPE_CHECKING:
    from ottla.broker.storage.file_log import FileLog
    from ottla.broker.storage.flusher import Flusher


_EXPIRED = branch("retention moves the log start", __name__)
_REMOVED = branch("expired segments are removed", __name__)


def expired_segments(log: FileLog, now_ms: int, watermark: int | None = None) -> list[Segment]:
    """Returns the oldest segments that have expired by time, size or the log's start. It never includes a segment that
    reaches above the acknowledged end or the high watermark, and never one from the middle of the log."""
    config = log.config
    deletes = "delete" in config.cleanup_policy
    excess = log.size_bytes - config.retention_bytes if deletes and config.retention_bytes >= 0 else 0
    expired: list[Segment] = []
    upto = log.acknowledged_end if watermark is None else min(watermark, log.acknowledged_end)
    for segment in log.segments:
        if segment.appended_end == 0 or segment.end_offset > upto:
            break
        too_old = deletes and config.retention_ms >= 0 and now_ms - segment.youngest_ms > config.retention_ms
        too_much = excess >= segment.appended_end and segment is not log.active
        below_start = segment.end_offset <= log.start_offset
        if not (too_old or too_much or below_start):
            break
        if too_much:
            excess -= segment.appended_end
        expired.append(segment)
    return expired


def apply_retention(
    log: FileLog,
    flusher: Flusher,
    now_ms: int,
    watermark: int | None = None,
    going: Callable[[Sequence[Segment]], int] = len,
) -> None:
    """Moves the log's start past expired segments, and removes files that are below the checkpointed start. `going`
    returns how many of the oldest expired segments may be removed: by default all of them.

    The start is made durable first, in a checkpoint together with the producer state, and only then are the files
    removed. A crash in between finds files that are known to be below the start, in whatever order the directory lost
    them.
    """
    if log.failed is not None or log.truncating:
        return
    expired = expired_segments(log, now_ms, watermark)
    expired = expired[: going(expired)]
    if expired:
        _EXPIRED()
        if expired[-1] is log.active:
            log.roll()
        log.advance_start(max(expired[-1].end_offset, log.start_offset), lambda _: None)
    remove_passed(log)
    if log.segments[0].end_offset <= log.start_offset and log.segments[0] is not log.active:
        flusher.want_start(log)
        # Do not wait for the next check: the sooner a file is free, the fewer files are in rotation, and the more of
        # them stays cached.
        flusher.run(lambda: remove_passed(log))


def remove_passed(log: FileLog) -> None:
    """Removes the files below the log's durable start and state."""
    if log.has_ended or log.truncating:
        return
    point = log.durable.recovery_point
    left_behind = min(point.start_offset, log.durable.state_offset) if point is not None else 0
    # Not before the start is durable: otherwise a restart would find records that the index has dropped.
    log.transactions.remove_below(point.start_offset if point is not None else 0)
    passed = list(takewhile(lambda s: s.end_offset <= left_behind and not s.sealing, log.segments[:-1]))
    if passed:
        _REMOVED()
        _remove(log, passed)


def _remove(log: FileLog, passed: list[Segment]) -> None:
    for segment in passed:
        segment.removed = True
    del log.segments[: len(passed)]

    for segment in passed:
        _dispose(log, segment)


def _dispose(log: FileLog, segment: Segment) -> None:
    """Recycles or removes one file, on a disk thread."""
    files, recycled = log.shared.disk.files, log.shared.recycled
    place = None
    if recycled is not None and segment.readers == 0:
        place = recycled.place_for(log.key, segment.appended_end, log.shared.clock.monotonic_ms())

    def dispose() -> None:
        if files.exists(segment.index_path):
            files.remove(segment.index_path)
        if place is not None and recycled is not None:
            recycled.park(segment.path, place)
        elif files.exists(segment.path):
            # A reader that has the file open can continue; the space is freed when it closes the file.
            files.remove(segment.path)

    def disposed(_: None, error: BaseException | None) -> None:
        segment.release()
        if place is not None and recycled is not None:
            useless = recycled.parked(log.key, place, segment.appended_end, error)
            if useless is not None:
                log.shared.remove_later([useless])
        if error is not None:
            log.shared.report(f"{segment.path}: could not remove an expired segment: {error}")

    log.shared.disk.sync_queue.call(dispose, disposed)

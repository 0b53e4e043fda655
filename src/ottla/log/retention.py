"""Which segments of a file log are no longer wanted, and their removal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from ottla.log.segment import Segment

if TYPE_CHECKING:
    from ottla.log.file_log import FileLog
    from ottla.log.flusher import Flusher


def expired_segments(log: FileLog, now_ms: int, watermark: int | None = None) -> list[Segment]:
    """The oldest segments that time, size or the log's start rule out. Never one that reaches above what is
    acknowledged, here and by all who have to (the watermark), and never one out of the middle."""
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
    """Moves the log's start past what has expired, and removes the files that a checkpoint has left behind. `going`
    says how many of the oldest expired segments may go: all of them, if nobody waits for them.

    First the start, durably in a checkpoint together with the producers' state, then the files: a crash in between
    finds files that it knows to be below the start, in whatever order the directory lost them.
    """
    if log.failed is not None or log.truncating:
        return
    expired = expired_segments(log, now_ms, watermark)
    expired = expired[: going(expired)]
    if expired:
        if expired[-1] is log.active:
            log.roll()
        log.advance_start(max(expired[-1].end_offset, log.start_offset), lambda _: None)
    remove_passed(log)
    if log.segments[0].end_offset <= log.start_offset and log.segments[0] is not log.active:
        flusher.want_start(log)
        # At once, not at the next look: the sooner a file is free, the fewer go round, and the more of them is cached.
        flusher.run(lambda: remove_passed(log))


def remove_passed(log: FileLog) -> None:
    """Removes the files that the log's durable start and state have left behind."""
    if log.has_ended or log.truncating:
        return
    point = log.recovery_point
    left_behind = min(point.start_offset, log.state_offset) if point is not None else 0
    # Not before the start is durable: without it, a restart finds records that the index has forgotten.
    log.transactions.remove_below(point.start_offset if point is not None else 0)
    passed = list(takewhile(lambda s: s.end_offset <= left_behind and not s.sealing, log.segments[:-1]))
    if passed:
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
            # A reader that still holds the file reads on; the space is free when it lets go.
            files.remove(segment.path)

    def disposed(_: None, error: BaseException | None) -> None:
        segment.release()
        if place is not None and recycled is not None:
            useless = recycled.parked(log.key, place, segment.appended_end, error)
            if useless is not None:
                log.shared.remove_later([useless])
        if error is not None:
            log.shared.report(f"{segment.path}: an expired segment could not be removed: {error}")

    log.shared.disk.sync_queue.call(dispose, disposed)

"""Which segments of a file log are no longer wanted, and their removal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.log.segment import Segment

if TYPE_CHECKING:
    from ottla.log.file_log import FileLog
    from ottla.log.flusher import Flusher


def expired_segments(log: FileLog, now_ms: int) -> list[Segment]:
    """The oldest segments that time, size or the log's start rule out. Never one that reaches above what is
    acknowledged, and never one out of the middle."""
    config = log.config
    deletes = "delete" in config.cleanup_policy
    excess = log.size_bytes - config.retention_bytes if deletes and config.retention_bytes >= 0 else 0
    expired: list[Segment] = []
    for segment in log.segments:
        if segment.removed:
            continue
        if segment.appended_end == 0 or segment.end_offset > log.acknowledged_end:
            break
        too_old = deletes and config.retention_ms >= 0 and now_ms - segment.max_timestamp > config.retention_ms
        too_much = excess >= segment.appended_end and segment is not log.active
        below_start = segment.end_offset <= log.start_offset
        if not (too_old or too_much or below_start):
            break
        if too_much:
            excess -= segment.appended_end
        expired.append(segment)
    return expired


def apply_retention(log: FileLog, flusher: Flusher, now_ms: int) -> None:
    """Removes what has expired and is checkpointed; what is not yet, is flushed first and goes at the next call.

    The checkpoint must have passed a segment before its file goes: the producers' state in it is then durable
    elsewhere, and a replay of the journal never looks for it.
    """
    if log.failed is not None:
        return
    expired = expired_segments(log, now_ms)
    if not expired:
        return
    if expired[-1] is log.active:
        log.roll()
    point = log.recovery_point
    ready = [segment for segment in expired if point is not None and segment.end_offset <= point.offset]
    if len(ready) < len(expired):
        flusher.want(log)
        flusher.run()
    if ready:
        _remove(log, ready)


def _remove(log: FileLog, expired: list[Segment]) -> None:
    def start_moved(error: OSError | None) -> None:
        if error is not None:
            return
        gone = set(expired)
        log.segments = [segment for segment in log.segments if segment not in gone]
        log.shared.disk.sync_queue.call(lambda: _remove_files(log, expired), removed)

    def removed(_: None, error: BaseException | None) -> None:
        if error is not None:
            log.shared.report(f"{log.directory}: expired segments could not be removed: {error}")

    for segment in expired:
        segment.removed = True
    log.advance_start(max(expired[-1].end_offset, log.start_offset), start_moved)


def _remove_files(log: FileLog, segments: list[Segment]) -> None:
    """On a disk thread. A reader that still holds the file reads on; the space is free when it lets go."""
    files = log.shared.disk.files
    for segment in segments:
        for path in (segment.path, segment.index_path):
            if files.exists(path):
                files.remove(path)
        segment.release()

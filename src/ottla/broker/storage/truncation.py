"""Truncates a file log whose last records are not in the history of its leader.

The order protects data (safety: journal-order, recovered-log): everything that was appended is written; the truncation
is durable in the journal; the recovery point is lowered durably; only then are the files truncated. A crash at any step
finds either the old log and a truncation to replay, or a recovery point at the truncation offset. Nothing is appended
or flushed meanwhile.

The log is then reopened up to its new recovery point, as after a restart. Segments, indexes, epochs and producers thus
have a single path of recovery (safety: duplicates).

A reset is a truncation that leaves nothing: the leader's log begins above our end, or the local data is of no use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.storage.compaction.swap import finish as finish_swap
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.flush import finish_directory
from ottla.broker.storage.journal import Mutation
from ottla.broker.storage.segment import LOG_SUFFIX, segment_name
from ottla.broker.storage.segment_writer import HEALING_ERRORS, RETRY_FULL_DISK_MS
from ottla.broker.storage.startup.batch_walk import BatchWalk
from ottla.broker.storage.startup.checkpoint import RecoveryPoint
from ottla.broker.storage.startup.legacy_indexes import rename_legacy_indexes
from ottla.broker.storage.startup.recovery import open_file_log
from ottla.broker.storage.startup.state_file import STATE_FILE
from ottla.ports import Completion, DataFile, FileSystem
from ottla.reach import branch

if TYPE_CHECKING:
    from ottla.broker.storage.flusher import Flusher


_TRUNCATED = branch("a log is truncated", __name__)
_ACROSS = branch("a log is truncated across a segment boundary", __name__)
_RESET = branch("a log is reset", __name__)
_BELOW = branch("a log is truncated below its recovery point", __name__)
_REPAIR = branch("a truncation waits until a segment is rewritten", __name__)
_FULL = branch("a truncation waits for space on a full disk", __name__)


class Truncation:
    """One truncation of one log. `done` is called with None when the log durably ends at or below the offset. A
    truncation that `resets` the log leaves it empty, beginning and ending at the offset."""

    def __init__(self, log: FileLog, flusher: Flusher, offset: int, done: Completion, *, resets: bool = False) -> None:
        self._log = log
        self._flusher = flusher
        self._offset = offset
        self._done = done
        self._resets = resets
        self._let_flusher_go: Callable[[], None] = _nothing

    def begin(self) -> None:
        """Waits until everything is written, then holds the flusher and truncates."""
        log = self._log
        if log.truncating:
            raise RuntimeError(f"{log.directory} is already being truncated")
        if self._offset < log.start_offset and not self._resets:
            raise ValueError(f"{log.directory} starts at {log.start_offset} and cannot be truncated to {self._offset}")
        if self._offset >= log.end_offset and not self._resets:
            self._done(log.failed)
            return
        log.truncating = True
        self._wait()

    def _wait(self) -> None:
        log = self._log
        log.writer.when_written(log.end_offset, lambda: self._flusher.hold(self._find_cut))

    def _find_cut(self, let_flusher_go: Callable[[], None]) -> None:
        self._let_flusher_go = let_flusher_go
        log, offset = self._log, self._offset
        if log.has_ended:
            self._end(log.failed)
            return
        if log.writer.is_frozen:
            # A flush that was running has failed. Its segment is rewritten first: another sync of the same file would
            # succeed although the pages are lost (safety: failed-sync).
            _REPAIR()
            let_flusher_go()
            self._wait()
            return
        if self._resets:
            _RESET()
            self._journal_it(beginning_at(offset), None)
            return
        segment = next((s for s in reversed(log.segments) if s.base_offset <= offset), log.segments[0])
        (_TRUNCATED if segment is log.active else _ACROSS)()
        relative, position = segment.index.entry_for_offset(max(offset - segment.base_offset, 0))
        begin = segment.base_offset, position, segment.base_offset + relative
        unsynced = [s for s in log.segments if s.base_offset <= segment.base_offset and s.synced_end < s.written_end]

        def find() -> RecoveryPoint:
            for other in unsynced:
                other.file.sync()
            log.shared.with_reserve(lambda: finish_directory(log, None))
            if segment.written_end == 0:
                return RecoveryPoint(segment.base_offset, segment.base_offset, 0, log.start_offset)
            return cut_point(segment.file, begin, segment.written_end, offset, log.start_offset)

        log.shared.disk.sync_queue.call(find, self._journal_it)

    def _journal_it(self, point: RecoveryPoint | None, error: BaseException | None) -> None:
        log = self._log
        if isinstance(error, OSError) and error.errno in HEALING_ERRORS:
            _FULL()
            # The disk is full. Nothing has changed yet, so retry later; other logs are flushed meanwhile.
            self._let_flusher_go()
            log.shared.clock.call_later(RETRY_FULL_DISK_MS, lambda: self._flusher.hold(self._find_cut))
            return
        if point is None:
            self._end(error)
            return
        known = log.durable.recovery_point
        if known is not None and point.offset < known.offset:
            _BELOW()

        def journaled(failure: OSError | None) -> None:
            if failure is not None:
                self._end(failure)
            else:
                self._flusher.write_point(log, point, lambda failure: self._cut(point, failure))

        if log.is_journaled:
            assert log.shared.journal is not None
            kind = Mutation.RESET if self._resets else Mutation.TRUNCATE
            log.shared.journal.append_mutation(log, kind, point.offset, journaled)
        else:
            journaled(None)

    def _cut(self, point: RecoveryPoint, failure: OSError | None) -> None:
        log = self._log
        if failure is not None or log.has_ended:
            self._end(failure or log.failed)
            return

        def reopen() -> FileLog:
            path, files = f"{log.directory}/{STATE_FILE}", log.shared.disk.files
            if self._resets and files.exists(path):
                files.remove(path)
            return open_file_log(log.shared, log.key, log.directory, log.config, point, up_to_point=True)

        def reopened(fresh: FileLog | None, error: BaseException | None) -> None:
            if fresh is not None and log.deleted:
                fresh.close()
            elif fresh is not None:
                log.become(fresh)
            self._end(error)

        log.shared.disk.sync_queue.call(reopen, reopened)

    def _end(self, error: BaseException | None) -> None:
        log = self._log
        if error is not None and log.failed is None and not log.deleted:
            log.fail(error if isinstance(error, OSError) else OSError(str(error)))
        log.truncating = False
        self._let_flusher_go()
        self._done(log.failed)


def cut_point(file: DataFile, begin: tuple[int, int, int], end: int, offset: int, start_offset: int) -> RecoveryPoint:
    """Finds the position at which to truncate a segment so that the log ends at the offset: before the batch that holds
    it. `begin` is the segment's base offset, a position, and the offset of the batch at that position. Blocking.

    A damaged batch ends the walk. Everything after it is truncated too, and is fetched again from the leader.
    """
    base_offset, position, next_offset = begin
    for found in BatchWalk(file, position, end, verify=False, next_offset=next_offset):
        if found.header.next_offset > offset:
            break
        position, next_offset = found.position + found.header.size_bytes, found.header.next_offset
    return RecoveryPoint(next_offset, base_offset, position, start_offset)


def beginning_at(offset: int) -> RecoveryPoint:
    """Returns the recovery point of a log that was reset to the offset."""
    return RecoveryPoint(offset, offset, 0, offset)


def lowered_point(files: FileSystem, directory: str, point: RecoveryPoint, offset: int) -> RecoveryPoint:
    """Returns the recovery point for a truncation that the journal has and the checkpoint does not. Called before the
    log is opened."""
    rename_legacy_indexes(files, directory)
    finish_swap(files, directory)
    names = files.list_dir(directory) if files.exists(directory) else []
    bases = [int(name.removesuffix(LOG_SUFFIX)) for name in names if name.endswith(LOG_SUFFIX)]
    base = max((base for base in bases if base <= offset), default=None)
    if base is None:
        return RecoveryPoint(offset, offset, 0, point.start_offset)
    file = files.open(f"{directory}/{segment_name(base)}")
    try:
        return cut_point(file, (base, 0, base), file.size(), offset, point.start_offset)
    finally:
        file.close()


def _nothing() -> None: ...

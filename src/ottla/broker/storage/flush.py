"""Makes a log's segments durable in the background and reports how far they are.

The order protects data (safety: journal-space): segments, directory, state file, and only then the checkpoint that
releases the journal's space, which the caller writes.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.segment import Segment
from ottla.broker.storage.startup.checkpoint import RecoveryPoint
from ottla.broker.storage.startup.state_file import STATE_FILE, can_tell_as_of, encode_state
from ottla.ports import FileSystem
from ottla.reach import branch

_OLDER_STATE = branch("a flush keeps an older producer state", __name__)
_START_ONLY = branch("the start of a cache log moves without a flush", __name__)

Flushed = Callable[[RecoveryPoint | None, BaseException | None], None]


class FlushPostponedError(Exception):
    """The segments are synced, but their indexes, names or state could not be written, for example on a full disk.
    Nothing is lost or suspect, and the flush is retried."""


class DirectoryFailedError(OSError):
    """A directory could not be synced. A retry might report success although names are lost."""


class Flush:
    """One flush of one log. It covers everything in the log when the flush begins."""

    def __init__(self, log: FileLog, done: Flushed) -> None:
        self._log = log
        self._done = done
        self._queue = log.shared.disk.sync_queue
        # Not up to the log's end: batches that are not journaled yet may wait for the space that this flush releases.
        self._end_offset = log.acknowledged_end if log.is_journaled else log.end_offset
        # The state as of that offset. It is written only after everything below it is durable, because a state ahead of
        # its log would answer lost batches as duplicates. If it is None, the older state stays, and so do the segments
        # above it, from which the rest is rebuilt.
        self._state: bytes | None = None
        self._aborted, self._removals = log.transactions.aborted, log.transactions.aborted.removals
        if can_tell_as_of(self._end_offset, log.producers, log.transactions):
            self._state = encode_state(self._end_offset, log.epochs, log.producers, log.transactions)
            # A log is not truncated in memory; a truncation reopens it. So no earlier state will be needed.
            log.transactions.forget_history(self._end_offset)
        else:
            _OLDER_STATE()
        self._syncs: list[tuple[Segment, int]] = []
        self._point: RecoveryPoint | None = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Starts the flush. It waits until everything up to its end offset is written, then syncs the segments."""
        self._log.writer.when_written(self._end_offset, self._sync_segments)

    def _sync_segments(self) -> None:
        log = self._log
        if log.has_ended:
            self._done(None, log.failed)
            return
        self._point = recovery_point_of(log)
        self._syncs = [(s, s.written_end) for s in log.segments if s.synced_end < s.written_end]
        if not self._syncs:
            self._finish_directory()
            return
        last = len(self._syncs) - 1
        for number, (segment, end) in enumerate(self._syncs):
            self._queue.sync(segment.file, self._on_synced(segment, end, is_last=number == last))

    def _on_synced(self, segment: Segment, end: int, *, is_last: bool) -> Callable[[OSError | None], None]:
        def synced(error: OSError | None) -> None:
            if error is None:
                segment.synced_end = max(segment.synced_end, end)
            elif not segment.removed:
                self._error = self._error or error
            if is_last:
                self._finish_directory()

        return synced

    def _finish_directory(self) -> None:
        if self._error is not None:
            self._done(None, self._error)
            return

        def finished(_: None, error: BaseException | None) -> None:
            if error is None:
                if self._state is not None:
                    self._log.durable.state_offset = self._end_offset
                    self._aborted.removals_saved = self._removals
                self._done(self._point, None)
            elif isinstance(error, DirectoryFailedError):
                self._done(None, error)
            else:
                self._done(None, FlushPostponedError(str(error)))

        shared = self._log.shared
        self._queue.call(lambda: shared.with_reserve(lambda: finish_directory(self._log, self._state)), finished)


class StartMove:
    """Writes the new start of a `cache` log to the checkpoint without syncing anything.

    The segments below the new start are removed next, so they need not reach the disk first. A log that keeps its
    records for less time than a full segment waits for its sync never writes them to disk, unless the kernel does. The
    remaining segments are as safe as before: they are synced in due time, and after a power cut they are read and
    verified from the new start on.
    """

    def __init__(self, log: FileLog, point: RecoveryPoint, state: bytes | None, done: Flushed) -> None:
        self._log = log
        self._point = point
        self._state = state
        self._done = done

    @classmethod
    def of(cls, log: FileLog, done: Flushed) -> StartMove | None:
        """Returns the move, or None if only a flush can move the start: the log is journaled; the start is in the
        middle of a segment, which a power cut could lose; the segments below it are still written, as those of a slow
        follower that has taken over the start of its leader's log; or the producer state is known only as of the log's
        end."""
        start = log.start_offset
        number = next((number for number, s in enumerate(log.segments) if s.end_offset > start), 0)
        passed = log.segments[number - 1]
        if log.is_journaled or log.has_ended or not number or log.segments[number].base_offset != start:
            return None
        if passed.written_end < passed.appended_end:
            return None
        known = log.durable.recovery_point
        if known is not None and known.segment_base >= start and log.durable.state_offset >= start:
            return cls(log, known._replace(start_offset=start), None, done)
        if not can_tell_as_of(start, log.producers, log.transactions):
            return None
        # Use the end of the last removed segment, not the beginning of the next: the latter would look like a reset
        # log.
        point = RecoveryPoint(start, passed.base_offset, passed.written_end, start)
        return cls(log, point, encode_state(start, log.epochs, log.producers, log.transactions), done)

    def begin(self) -> None:
        """Writes the log's state on the sync queue, then calls `done`."""
        _START_ONLY()
        log, state = self._log, self._state

        def finished(_: None, error: BaseException | None) -> None:
            if error is not None:
                self._done(None, error if isinstance(error, DirectoryFailedError) else FlushPostponedError(str(error)))
                return
            if state is not None:
                log.durable.state_offset = self._point.offset
            self._done(self._point, None)

        def write_state() -> None:
            if state is not None and not log.deleted:
                # If the log was never flushed, its own directory entry is not durable either.
                _sync_dir(log.shared.disk.files, log.directory.rpartition("/")[0])
                log.shared.disk.files.replace_file(f"{log.directory}/{STATE_FILE}", state)

        log.shared.disk.sync_queue.call(lambda: log.shared.with_reserve(write_state), finished)


def recovery_point_of(log: FileLog) -> RecoveryPoint:
    """Returns the recovery point at the log's written end."""
    written = next((s for s in reversed(log.segments) if s.written_end > 0), log.segments[0])
    return RecoveryPoint(log.written_end, written.base_offset, written.written_end, log.start_offset)


def _sync_dir(files: FileSystem, path: str) -> None:
    try:
        files.sync_dir(path)
    except OSError as error:
        raise DirectoryFailedError(error.errno, str(error)) from error


def finish_directory(log: FileLog, state: bytes | None) -> None:
    """Writes the indexes, directory entries and state of a log after its segments are synced. Blocking."""
    files = log.shared.disk.files
    if log.deleted:
        return
    if not files.exists(log.directory):
        files.make_dirs(log.directory)
    touched = [segment for segment in list(log.segments) if segment.written_end > 0 and not segment.removed]
    for segment in touched:
        segment.persist_index()
    new = [segment for segment in touched if not segment.entry_durable]
    if new:
        _sync_dir(files, log.directory)
        _sync_dir(files, log.directory.rpartition("/")[0])
        for segment in new:
            segment.entry_durable = True
    # Last, because the state must never be ahead of segments whose names a power cut could still lose.
    if state is not None:
        files.replace_file(f"{log.directory}/{STATE_FILE}", state)

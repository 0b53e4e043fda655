"""Makes a log's segments durable in the background and tells up to where they are.

The order is what keeps data (SAFETY 10): segments, directory, state file, and only then, by the caller, the
checkpoint that gives the journal's space back.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.log.checkpoint import RecoveryPoint
from ottla.log.file_log import FileLog
from ottla.log.segment import Segment
from ottla.log.state_file import STATE_FILE, can_tell_as_of, encode_state
from ottla.ports import FileSystem

Flushed = Callable[[RecoveryPoint | None, BaseException | None], None]


class FlushPostponedError(Exception):
    """The segments are synced, but their indexes, names or state could not be written, as on a full disk. Nothing is
    lost and nothing is suspect: the flush is tried again."""


class DirectoryFailedError(OSError):
    """A directory could not be synced. A second try might be told that all is well while the names are lost."""


class Flush:
    """One flush of one log: everything that is in it when the flush begins."""

    def __init__(self, log: FileLog, done: Flushed) -> None:
        self._log = log
        self._done = done
        self._queue = log.shared.disk.sync_queue
        # Not up to the log's end: what the journal does not have yet may wait for the space that this flush makes.
        self._end_offset = log.acknowledged_end if log.is_journaled else log.end_offset
        # The state as of that offset, written only after everything below it is durable: a state that is ahead of the
        # log it describes would answer lost batches as duplicates.
        # Without one, the older state stays, and with it the segments above it, from which the rest is learned.
        self._state: bytes | None = None
        self._aborted, self._removals = log.transactions.aborted, log.transactions.aborted.removals
        if can_tell_as_of(self._end_offset, log.producers, log.transactions):
            self._state = encode_state(self._end_offset, log.epochs, log.producers, log.transactions)
            # The log is not cut in memory: a truncation opens it again. So nobody asks for anything earlier.
            log.transactions.forget_history(self._end_offset)
        self._syncs: list[tuple[Segment, int]] = []
        self._point: RecoveryPoint | None = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        self._log.when_written(self._end_offset, self._sync_segments)

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
                    self._log.state_offset = self._end_offset
                    self._aborted.removals_saved = self._removals
                self._done(self._point, None)
            elif isinstance(error, DirectoryFailedError):
                self._done(None, error)
            else:
                self._done(None, FlushPostponedError(str(error)))

        shared = self._log.shared
        self._queue.call(lambda: shared.with_reserve(lambda: finish_directory(self._log, self._state)), finished)


class StartMove:
    """Tells the checkpoint of a `cache` log's new start, and syncs nothing.

    What retention has passed is removed next: it need not reach the disk before. A log that keeps its records for less
    time than a full segment waits for its sync never writes them there, unless the kernel does. What stays is as safe
    as it was: it is synced in its own time, and after a power cut it is read and verified from the new start on.
    """

    def __init__(self, log: FileLog, point: RecoveryPoint, state: bytes | None, done: Flushed) -> None:
        self._log = log
        self._point = point
        self._state = state
        self._done = done

    @classmethod
    def of(cls, log: FileLog, done: Flushed) -> StartMove | None:
        """None if only a flush can move the start: the log is journaled, the start is in the middle of a segment (which
        a power cut could take from it), or what producers did before the start is known as of the log's end alone."""
        start = log.start_offset
        number = next((number for number, s in enumerate(log.segments) if s.end_offset > start), 0)
        passed = log.segments[number - 1]
        if log.is_journaled or log.has_ended or not number or log.segments[number].base_offset != start:
            return None
        known = log.recovery_point
        if known is not None and known.segment_base >= start and log.state_offset >= start:
            return cls(log, known._replace(start_offset=start), None, done)
        if not can_tell_as_of(start, log.producers, log.transactions):
            return None
        # The end of what is passed, not the beginning of what follows: that is how the point of a reset log looks.
        point = RecoveryPoint(start, passed.base_offset, passed.written_end, start)
        return cls(log, point, encode_state(start, log.epochs, log.producers, log.transactions), done)

    def begin(self) -> None:
        log, state = self._log, self._state

        def finished(_: None, error: BaseException | None) -> None:
            if error is not None:
                self._done(None, error if isinstance(error, DirectoryFailedError) else FlushPostponedError(str(error)))
                return
            if state is not None:
                log.state_offset = self._point.offset
            self._done(self._point, None)

        def write_state() -> None:
            if state is not None and not log.deleted:
                # The log may never have been flushed: then its own name is not durable either.
                _sync_dir(log.shared.disk.files, log.directory.rpartition("/")[0])
                log.shared.disk.files.replace_file(f"{log.directory}/{STATE_FILE}", state)

        log.shared.disk.sync_queue.call(lambda: log.shared.with_reserve(write_state), finished)


def recovery_point_of(log: FileLog) -> RecoveryPoint:
    written = next((s for s in reversed(log.segments) if s.written_end > 0), log.segments[0])
    return RecoveryPoint(log.written_end, written.base_offset, written.written_end, log.start_offset)


def _sync_dir(files: FileSystem, path: str) -> None:
    try:
        files.sync_dir(path)
    except OSError as error:
        raise DirectoryFailedError(error.errno, str(error)) from error


def finish_directory(log: FileLog, state: bytes | None) -> None:
    """After the segments are synced: their indexes, their names, the log's state. Blocking."""
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
    # Last: the state must never be ahead of segments that a power cut could still take away with their names.
    if state is not None:
        files.replace_file(f"{log.directory}/{STATE_FILE}", state)

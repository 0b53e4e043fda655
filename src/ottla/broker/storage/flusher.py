"""Moves data that is only in the journal into synced segments, writes a checkpoint, and releases the journal's space.

A flush runs when the journal is half full, when a log requests it, and every few seconds, so that a restart has little
to replay. The logs of the oldest journal file come first (safety: journal-space).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.flush import DirectoryFailedError, Flush, FlushPostponedError, StartMove
from ottla.broker.storage.log_resources import LogResources
from ottla.broker.storage.startup.checkpoint import Checkpoint, RecoveryPoint, encode_checkpoint
from ottla.broker.storage.startup.rescue import Rescue
from ottla.ports import Completion
from ottla.protocol.model.ids import LogKey
from ottla.reach import branch

_KEEPS = branch("a flush fails and the journal keeps its records", __name__)
_POSTPONED = branch("a flush is postponed", __name__)


@dataclass(slots=True, eq=False)
class _Round:
    sequence: int
    """The journal sequence to release afterwards; 0 if none."""
    ends: dict[FileLog, int]
    """The logs with entries up to that sequence, and their ends there; -1 for a log without batches among them."""
    logs: set[FileLog]
    """These logs, and others that requested a flush."""
    waiting: list[Callable[[], None]]
    remaining: int
    keeps_journal: bool = False
    """True if a log that has entries in the journal could be neither flushed nor rescued."""
    moved: set[FileLog] = field(default_factory=set)
    """The logs whose start was moved without a flush."""


class Flusher:
    """Flushes logs in rounds, each of which ends with a checkpoint. Only one round runs at a time."""

    def __init__(
        self,
        shared: LogResources,
        checkpoint_path: str,
        points: dict[LogKey, RecoveryPoint],
        released: int,
        rescue: Rescue,
    ) -> None:
        self._shared = shared
        self._checkpoint_path = checkpoint_path
        self._points = points
        self._released = released
        self._rescue = rescue
        self._running = False
        self._wanted: dict[LogKey, FileLog] = {}
        self._passed: dict[LogKey, FileLog] = {}
        """Logs whose start has moved. The next round writes it to the checkpoint, with or without a flush."""
        self._waiting: list[Callable[[], None]] = []
        self._holds: deque[Callable[[Callable[[], None]], None]] = deque()
        self._everything = False
        self._asked = False
        """True if a round was requested since the last one began."""

    @property
    def released_sequence(self) -> int:
        """The journal sequence released by the durable checkpoint; everything above it is still needed."""
        return self._released

    @property
    def is_running(self) -> bool:
        """True while a round runs."""
        return self._running

    def want(self, log: FileLog) -> None:
        """Requests that the next round flushes this log."""
        self._wanted[log.key] = log

    def want_start(self, log: FileLog) -> None:
        """Requests a checkpoint with the log's new start, for which retention waits."""
        self._passed[log.key] = log

    def forget(self, log: FileLog) -> None:
        """Removes a deleted log; its recovery point is left out of the next checkpoint."""
        self._points.pop(log.key, None)
        self._wanted.pop(log.key, None)
        self._passed.pop(log.key, None)
        self._rescue.forget(log)

    @property
    def has_wanted(self) -> bool:
        """True if a log waits for the next round."""
        return bool(self._wanted)

    def run(
        self, done: Callable[[], None] | None = None, logs: Iterable[FileLog] = (), *, everything: bool = False
    ) -> None:
        """Starts a round. `done` is called after a round that began at or after this call.

        With `everything`, the round covers the whole journal, otherwise its oldest full file.
        """
        self._everything = self._everything or everything
        for log in logs:
            self.want(log)
        if done is not None:
            self._waiting.append(done)
        self._asked = True
        if not self._running:
            self._begin_round()

    def hold(self, held: Callable[[Callable[[], None]], None]) -> None:
        """Calls `held(release)` when no round is running; no round begins before `release()` is called."""
        self._holds.append(held)
        if not self._running:
            self._grant_hold()

    def _grant_hold(self) -> None:
        self._running = True
        self._holds.popleft()(lambda: self._end_round([], has_released=False))

    def write_point(self, log: FileLog, point: RecoveryPoint, done: Completion) -> None:
        """Writes a checkpoint with a changed recovery point for one log. The flusher must be held."""
        self._points[log.key] = point
        data = encode_checkpoint(Checkpoint(self._released, self._points))

        def written(_: None, error: BaseException | None) -> None:
            done(error if error is None or isinstance(error, OSError) else OSError(str(error)))

        self._shared.disk.sync_queue.call(lambda: self._write(data), written)

    def _write(self, checkpoint: bytes) -> None:
        """Writes the checkpoint file. Blocking."""
        files = self._shared.disk.files
        self._shared.with_reserve(lambda: files.replace_file(self._checkpoint_path, checkpoint))

    def _begin_round(self) -> None:
        self._asked = False
        journal = self._shared.journal
        everything, self._everything = self._everything, False
        oldest = journal.oldest(everything=everything) if journal is not None and journal.failed is None else None
        sequence, ends = 0, dict[FileLog, int]()
        if oldest is not None:
            sequence = oldest[0]
            ends = {log: end for log, end in oldest[1].items() if isinstance(log, FileLog) and not log.deleted}
        flushed = {*self._wanted.values(), *ends}
        logs = {*self._passed.values(), *flushed}
        self._wanted.clear()
        self._passed.clear()
        waiting, self._waiting = self._waiting, []
        if not logs and not sequence:
            self._end_round(waiting, has_released=False)
            return
        self._running = True
        current = _Round(sequence, ends, logs, waiting, len(logs))
        if not logs:
            self._write_checkpoint(current)
        for log in sorted(logs, key=lambda log: log.key):
            if log.failed is not None:
                self._on_flushed(current, log, None, log.failed)
            else:
                self._begin_log(current, log, only_start=log not in flushed)

    def _begin_log(self, current: _Round, log: FileLog, *, only_start: bool) -> None:
        done = partial(self._on_flushed, current, log)
        move = StartMove.of(log, done) if only_start else None
        if move is not None:
            current.moved.add(log)
            move.begin()
        else:
            Flush(log, done).begin()

    def _on_flushed(
        self, current: _Round, log: FileLog, point: RecoveryPoint | None, error: BaseException | None
    ) -> None:
        if error is None:
            if point is not None and not log.deleted:
                self._points[log.key] = point
            self._on_log_done(current)
            return
        self._on_flush_failed(log, error)
        if log not in current.ends or log.deleted:
            self._on_log_done(current)
        elif log.failed is not None and self._journal_works:
            # Rescue no further than the log reaches: a truncation may have removed entries that the oldest file has.
            end_offset = min(current.ends[log], log.acknowledged_end)
            self._rescue.begin(log, end_offset, partial(self._on_rescued, current, log))
        else:
            _KEEPS()
            # Its entries stay in the journal, so nothing acknowledged is lost, but their space stays occupied.
            current.keeps_journal = True
            self._on_log_done(current)

    @property
    def _journal_works(self) -> bool:
        return self._shared.journal is not None and self._shared.journal.failed is None

    def _on_rescued(self, current: _Round, log: FileLog, error: BaseException | None) -> None:
        if log.deleted:
            pass
        elif error is not None:
            current.keeps_journal = True
        else:
            # The journal may also have had the log's new start. Rescued files hold only batches, so record the start
            # here.
            point = self._points.get(log.key, RecoveryPoint(0, 0, 0, 0))
            if point.start_offset != log.start_offset:
                self._points[log.key] = point._replace(start_offset=log.start_offset)
        self._on_log_done(current)

    def _on_log_done(self, current: _Round) -> None:
        current.remaining -= 1
        if current.remaining == 0:
            self._write_checkpoint(current)

    def _on_flush_failed(self, log: FileLog, error: BaseException) -> None:
        if isinstance(error, FlushPostponedError):
            _POSTPONED()
            self._shared.report(f"{log.directory}: could not flush the log, will retry: {error}")
            self.want(log)
        elif isinstance(error, DirectoryFailedError):
            log.fail(error)
        elif log.failed is None:
            log.writer.segment_failed(error if isinstance(error, OSError) else OSError(str(error)))

    def _write_checkpoint(self, current: _Round) -> None:
        releases = current.sequence > 0 and not current.keeps_journal
        released = max(self._released, current.sequence) if releases else self._released
        data = encode_checkpoint(Checkpoint(released, self._points))
        points = {log: self._points.get(log.key) for log in current.logs}

        def written(_: None, error: BaseException | None) -> None:
            if error is None:
                # Not earlier: a concurrent reader of the journal must find everything that the durable checkpoint
                # needs.
                self._released = released
                for log, point in points.items():
                    log.durable.recovery_point = point
                    if log not in current.moved:
                        log.durable.flushed_ms = self._shared.clock.now_ms()
                    if not log.is_dirty:
                        self._shared.unsynced.discard(log)
                if releases and self._shared.journal is not None:
                    self._shared.journal.release(current.sequence)
            else:
                self._shared.report(f"could not write the checkpoint, will retry: {error}")
                self._wanted.update({log.key: log for log in current.logs if not log.deleted})
            self._end_round(current.waiting, has_released=releases and error is None)

        self._shared.disk.sync_queue.call(lambda: self._write(data), written)

    def _end_round(self, waiting: list[Callable[[], None]], *, has_released: bool) -> None:
        """Ends a round. Starts another if one was requested meanwhile, or if the journal is under pressure and this
        round released space. A round that released nothing would not release anything the next time either."""
        self._running = False
        for callback in waiting:
            callback()
        if self._holds and not self._running:
            self._grant_hold()
        journal = self._shared.journal
        makes_room = has_released and journal is not None and journal.under_pressure
        if not self._running and (self._asked or makes_room):
            self._begin_round()

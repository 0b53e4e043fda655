"""Writes the batches of one log from memory to its segment files.

One write is in flight at a time. Batches that arrive meanwhile are gathered for the next one. A `disk` log writes
lazily, because its journal has the batches already, and never past the end of its journaled part. A `cache` log writes
at the end of the event loop's turn.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ottla.broker.storage.append_rejections import sentence_for
from ottla.broker.storage.batches import BatchList
from ottla.broker.storage.log_resources import LogResources
from ottla.broker.storage.pending_writes import PendingWrite, PendingWrites
from ottla.broker.storage.segment import Segment
from ottla.reach import branch

_FULL = branch("a segment write finds a full disk", __name__)
_AGAIN = branch("a segment write is repeated after a full disk", __name__)

LAZY_WRITE_BYTES = 1024 * 1024
EARLY_WRITE_BYTES = 256 * 1024
"""With this many pending bytes a `cache` log writes at once instead of at the end of the turn."""
RETRY_FULL_DISK_MS = 500.0
HEALING_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
_UNBOUNDED = 1 << 63


class WriterEvents(Protocol):
    """Callbacks from a writer to its log, on the event loop's thread."""

    def on_written(self, end_offset: int) -> None:
        """The segments of a `cache` log hold everything below the offset. More work may follow before
        `on_acknowledged`."""
        ...

    def on_acknowledged(self) -> None:
        """A write of a `cache` log has ended, and the next one has begun."""
        ...

    def fail(self, error: OSError) -> None:
        """A segment could be neither written nor repaired."""
        ...


class SegmentWriter:
    """The segment writes of one log. `written_end` is the end of what the segments hold.

    It is also the log's entry in the tail cache, which may evict a batch only after it is written.
    """

    __slots__ = (
        "_directory",
        "_events",
        "_is_beginning",
        "_is_due",
        "_is_frozen",
        "_is_journaled",
        "_is_stopped",
        "_retries",
        "_shared",
        "_waits",
        "journaled_end",
        "pending",
        "repair",
        "tail",
        "written_end",
    )

    def __init__(
        self,
        shared: LogResources,
        directory: str,
        events: WriterEvents,
        end_offset: int,
        *,
        is_journaled: bool,
    ) -> None:
        self._shared = shared
        self._directory = directory
        self._events = events
        self._is_journaled = is_journaled
        self.tail = BatchList()
        """The newest batches, which the tail cache keeps. Batches that are not written can be read only from here."""
        self.repair: Callable[[OSError], None] | None = None
        """Rewrites segments from the journal after one of their files failed."""
        self.pending = PendingWrites()
        self.written_end = end_offset
        self.journaled_end = end_offset
        self._waits: list[tuple[int, Callable[[], None]]] = []
        self._is_due = False
        """True if a write is scheduled."""
        self._is_beginning = False
        self._retries = False
        """True while a write waits to be repeated, after the disk was full."""
        self._is_frozen = False
        self._is_stopped = False

    def schedule(self) -> None:
        """Schedules a write of the batches that were just appended, or begins it if there are many."""
        if self._is_journaled:
            if self.pending.size_bytes >= LAZY_WRITE_BYTES:
                self.write_now()
            elif not self._is_due:
                self._is_due = True
                self._shared.turns.later(self)
        elif self.pending.size_bytes >= EARLY_WRITE_BYTES:
            self.write_now()
        elif not self._is_due:
            self._is_due = True
            self._shared.turns.this_turn(self)

    def expect_write(self) -> None:
        """Schedules no write of the batches that are appended next: the caller calls `write_now` after them."""
        self._is_due = True

    def on_journaled(self, end_offset: int) -> None:
        """Notes that the journal has everything below the offset."""
        self.journaled_end = end_offset
        if self._waits or self.pending.size_bytes >= LAZY_WRITE_BYTES:
            self.write_now()
        elif self.pending and not self._is_due:
            self._is_due = True
            self._shared.turns.later(self)

    def write_now(self) -> None:
        """Begins the next segment write, if none is in flight and something is pending. A write may end before its call
        returns; the loop then continues with the next."""
        self._is_due = False
        if self._is_beginning:
            return
        self._is_beginning = True
        while not (self._is_frozen or self._is_stopped or self._retries):
            write = self.pending.begin(self.journaled_end if self._is_journaled else _UNBOUNDED)
            if write is None:
                break
            done = partial(self._on_written, write)
            try:
                file = write.segment.file
            except OSError as error:
                done(error)
            else:
                self._shared.disk.segment_queue.write(file, write.position, write.batches, done)
        self._is_beginning = False

    def _on_written(self, write: PendingWrite, error: OSError | None) -> None:
        if not self.pending.end(write, is_written=error is None):
            self.write_now()
            return
        if error is not None:
            self._on_write_failed(error)
            return
        write.segment.written_end = write.position + write.size_bytes
        self._set_written_end(write.end_offset)
        if not self._is_journaled or self.pending.size_bytes >= LAZY_WRITE_BYTES or self._waits:
            self.write_now()
        if self._waits:
            self.run_waits()
        if not self._is_journaled:
            self._events.on_acknowledged()

    def _set_written_end(self, end_offset: int) -> None:
        self.written_end = end_offset
        if not self._is_journaled:
            self._events.on_written(end_offset)
        self._shared.tail.on_written(self)

    def _on_write_failed(self, error: OSError) -> None:
        """Retries after a full disk: the same bytes go to the same place (safety: one-history). After any other error,
        the segment is rewritten from the journal, or the log fails."""
        if error.errno not in HEALING_ERRORS:
            self.segment_failed(error)
            return
        _FULL()
        self._shared.report(sentence_for(error, self._directory))
        self._retries = True
        self._shared.clock.call_later(RETRY_FULL_DISK_MS, self._write_again)

    def segment_failed(self, error: OSError) -> None:
        """Handles a failed write or sync of a segment. It is never retried on the same file (safety: failed-sync)."""
        if self.repair is not None and self._is_journaled:
            self.repair(error)
        else:
            self._events.fail(error)

    def _write_again(self) -> None:
        _AGAIN()
        self._retries = False
        self.write_now()

    @property
    def is_frozen(self) -> bool:
        """True while a failed segment is rewritten."""
        return self._is_frozen

    def freeze(self) -> None:
        """Suspends the writes. Appends continue in memory and in the journal."""
        self._is_frozen = True

    def thaw(self, written_end: int) -> None:
        """Resumes the writes. The segments hold everything below `written_end`."""
        self._is_frozen = False
        self.pending.drop_below(written_end)
        self._set_written_end(max(self.written_end, written_end))
        self.run_waits()
        self.write_now()

    def jump_to(self, offset: int) -> None:
        """Continues at the offset. Nothing is pending or in flight."""
        self.written_end = self.journaled_end = offset

    def stop(self) -> None:
        """Begins no more writes: the log has failed or was deleted."""
        self._is_stopped = True

    def bytes_below(self, offset: int, segment: Segment) -> int:
        """Returns how many bytes of a segment lie below an offset, which is at or above the written end."""
        return segment.appended_end - self.pending.bytes_above(offset, segment)

    def when_written(self, offset: int, callback: Callable[[], None]) -> None:
        """Runs the callback once everything below the offset is in the segments (for `disk`, also in the journal), or
        once the writer is stopped, after which nothing is written."""
        if self._is_stopped or (self.written_end >= offset and not self._is_frozen):
            callback()
            return
        self._waits.append((offset, callback))
        self.write_now()

    def run_waits(self) -> None:
        """Runs the callbacks that are due."""
        if self._waits and (self._is_stopped or not self._is_frozen):
            written = _UNBOUNDED if self._is_stopped else self.written_end
            due = [callback for offset, callback in self._waits if offset <= written]
            self._waits = [wait for wait in self._waits if wait[0] > written]
            for callback in due:
                callback()

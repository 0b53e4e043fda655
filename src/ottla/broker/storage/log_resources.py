"""State and resources that all logs of one broker share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ottla.broker.storage.journal import Journal, JournalEntry
from ottla.broker.storage.recycled_files import RecycledFiles
from ottla.broker.storage.reserve import SpaceReserve
from ottla.broker.storage.tail_cache import TailCache
from ottla.ports import Allocate, Clock, Disk

LAZY_WRITE_MS = 20.0
"""How long a journaled batch may wait for its segment write: long enough to gather many small batches into one call."""


class ScheduledWriter(Protocol):
    """The segment writes of a log."""

    def write_now(self) -> None:
        """Writes the batches that wait for a larger write."""
        ...


class FlushableLog(Protocol):
    """A log that may be due for a flush."""

    def wants_flush(self, now_ms: int) -> bool:
        """Returns whether a flush is due at this wall-clock time."""
        ...


@dataclass(slots=True)
class MemoryBudget:
    """The number of bytes that all memory logs of a broker may hold together (safety: memory-loss)."""

    size_bytes_max: int
    size_bytes: int = 0

    def has_room_for(self, size: int) -> bool:
        """Returns whether this many more bytes fit."""
        return self.size_bytes + size <= self.size_bytes_max


class WriteScheduler:
    """Schedules segment writes: at the end of the loop's turn (`cache`), or after a few milliseconds (`disk`).

    One system call then writes everything that arrived for a segment meanwhile.
    """

    __slots__ = ("_clock", "_later", "_later_scheduled", "_soon", "_soon_scheduled")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._soon: list[ScheduledWriter] = []
        self._soon_scheduled = False
        self._later: list[ScheduledWriter] = []
        self._later_scheduled = False

    def this_turn(self, writer: ScheduledWriter) -> None:
        """Begins the write at the end of this turn of the event loop."""
        self._soon.append(writer)
        if not self._soon_scheduled:
            self._soon_scheduled = True
            self._clock.call_soon(self._run_soon)

    def later(self, writer: ScheduledWriter) -> None:
        """Begins the write within `LAZY_WRITE_MS`."""
        self._later.append(writer)
        if not self._later_scheduled:
            self._later_scheduled = True
            self._clock.call_later(LAZY_WRITE_MS, self._run_later)

    def _run_soon(self) -> None:
        self._soon_scheduled = False
        writers, self._soon = self._soon, []
        for writer in writers:
            writer.write_now()

    def _run_later(self) -> None:
        self._later_scheduled = False
        writers, self._later = self._later, []
        for writer in writers:
            writer.write_now()


@dataclass(slots=True)
class LogResources:
    """Everything that the logs of one broker share."""

    disk: Disk
    clock: Clock
    tail: TailCache
    memory: MemoryBudget
    journal: Journal | None = None
    """None while logs are being recovered, and on a broker without a disk."""
    read_journal: Callable[[], Iterator[JournalEntry]] | None = None
    """Reads all journal entries that are not released yet. Blocking."""
    recycled: RecycledFiles | None = None
    reserve: SpaceReserve | None = None
    receive: Allocate = bytearray
    """Allocates memory for incoming data that goes into logs. It is reused after its data is written and no longer
    referenced."""
    report: Callable[[str], None] = print
    """Reports damage, a full disk or a failed log to the operator."""
    unsynced: set[FlushableLog] = field(default_factory=set)
    """The `cache` logs that have been written to since their last flush."""
    turns: WriteScheduler = field(init=False)

    def __post_init__(self) -> None:
        self.turns = WriteScheduler(self.clock)

    def remove_later(self, paths: list[str]) -> None:
        """Removes unneeded files in the background. A file that remains is removed at the next start."""
        files = self.disk.files

        def remove() -> None:
            for path in paths:
                files.remove(path)

        if paths:
            self.disk.sync_queue.call(remove, lambda _, __: None)

    def with_reserve(self, job: Callable[[], None]) -> None:
        """Runs a job that writes small files and must succeed even on a full disk. Blocking."""
        if self.reserve is None:
            job()
        else:
            self.reserve.use_for(job)

"""What all logs of one broker share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ottla.log.journal import Journal, JournalEntry
from ottla.log.recycling import RecycledFiles
from ottla.log.reserve import SpaceReserve
from ottla.log.tail_cache import TailCache
from ottla.ports import Allocate, Clock, Disk

LAZY_WRITE_MS = 20.0
"""How long a journaled batch may wait for its segment write: long enough to gather many small ones into one call."""


class Writes(Protocol):
    def write_now(self) -> None: ...

    def wants_flush(self, now_ms: int) -> bool: ...


@dataclass(slots=True)
class MemoryBudget:
    """The bytes that all memory logs of a broker may hold together (SAFETY 25)."""

    size_bytes_max: int
    size_bytes: int = 0

    def has_room_for(self, size: int) -> bool:
        return self.size_bytes + size <= self.size_bytes_max


class WriteTurns:
    """Gathers the segment writes of a turn of the loop (`cache`) or of a few milliseconds (`disk`).

    One system call then serves all that arrived for a segment meanwhile.
    """

    __slots__ = ("_clock", "_later", "_later_scheduled", "_soon", "_soon_scheduled")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._soon: list[Writes] = []
        self._soon_scheduled = False
        self._later: list[Writes] = []
        self._later_scheduled = False

    def this_turn(self, log: Writes) -> None:
        self._soon.append(log)
        if not self._soon_scheduled:
            self._soon_scheduled = True
            self._clock.call_soon(self._run_soon)

    def later(self, log: Writes) -> None:
        self._later.append(log)
        if not self._later_scheduled:
            self._later_scheduled = True
            self._clock.call_later(LAZY_WRITE_MS, self._run_later)

    def _run_soon(self) -> None:
        self._soon_scheduled = False
        logs, self._soon = self._soon, []
        for log in logs:
            log.write_now()

    def _run_later(self) -> None:
        self._later_scheduled = False
        logs, self._later = self._later, []
        for log in logs:
            log.write_now()


@dataclass(slots=True)
class SharedByLogs:
    disk: Disk
    clock: Clock
    tail: TailCache
    memory: MemoryBudget
    journal: Journal | None = None
    """None while logs are being recovered, and on a broker that has no disk."""
    read_journal: Callable[[], Iterator[JournalEntry]] | None = None
    """Everything that is in the journal and not released yet. Blocking."""
    recycled: RecycledFiles | None = None
    reserve: SpaceReserve | None = None
    receive: Allocate = bytearray
    """Memory for what arrives and goes into logs: used again when the last of it is written and forgotten."""
    report: Callable[[str], None] = print
    """Tells a person: damage, a full disk, a failed log."""
    unsynced: set[Writes] = field(default_factory=set)
    """The `cache` logs that were written to since their last flush."""
    turns: WriteTurns = field(init=False)

    def __post_init__(self) -> None:
        self.turns = WriteTurns(self.clock)

    def remove_later(self, paths: list[str]) -> None:
        """Files that nobody wants any more; one that stays is removed at the next start."""
        files = self.disk.files

        def remove() -> None:
            for path in paths:
                files.remove(path)

        if paths:
            self.disk.sync_queue.call(remove, lambda _, __: None)

    def with_reserve(self, job: Callable[[], None]) -> None:
        """Runs a job that writes small files which a full disk must not prevent. Blocking."""
        if self.reserve is None:
            job()
        else:
            self.reserve.use_for(job)

"""Places blocks in the ring: free files, the current file, and full files until they are released.

Sequences order the blocks, so the files need no order among themselves: any free file that is large enough may be next.

The ring starts with one small file. It grows in the background ahead of need, when less than half of it is free. When
it may not grow (because of its limit or a full disk), the journal waits for a release. A block larger than every file
gets a file of its own size, even over the limit; that file is removed after its release.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ottla.broker.storage.journal.format import ALIGNMENT_MIN, padded
from ottla.broker.storage.journal.group import JournaledLog
from ottla.broker.storage.journal.ring_files import RingFile, alignment_of, create_file, open_files, remove_file
from ottla.ports import Clock, Disk, Timer

_log = logging.getLogger(__name__)
_FIRST_FILE_BYTES = 1 << 20
"""Small, so that an in-process broker starts in milliseconds. Later files double up to the configured size."""
_RETRY_MS = 1000.0
LOGS_FACTOR = 2
"""How many times the logs of the oldest full file may be synced to release further files."""


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """Sizes of the journal and its writes."""

    ring_bytes_max: int = 256 << 20
    file_bytes_max: int = 8 << 20
    group_bytes_max: int = 4 << 20
    early_bytes: int = 32 << 10
    """A group of this size does not wait for more, neither for the end of the turn nor for the end of the previous
    write. Measured with 64 requests of 1 KB in flight: without it, they all end up in one group, and the disk and the
    loop wait for each other in turn."""

    def __post_init__(self) -> None:
        if not ALIGNMENT_MIN <= self.file_bytes_max <= self.ring_bytes_max:
            raise ValueError(f"a journal of {self.ring_bytes_max} bytes cannot have files of {self.file_bytes_max}")


class Ring:
    """The ring of journal files. `on_space` is called when a file was added, `on_pressure` when a release is wanted
    soon."""

    def __init__(self, disk: Disk, clock: Clock, directory: str, limits: JournalLimits, files: list[RingFile]) -> None:
        self._disk = disk
        self._clock = clock
        self._directory = directory
        self._limits = limits
        self._current: RingFile | None = None
        self._full: deque[RingFile] = deque()
        self._free: deque[RingFile] = deque(files)
        self._next_number = 1 + max(file.number for file in files)
        self._wanted_bytes = 0
        self._growing = False
        self._growth_failed = False
        self._retry: Timer | None = None
        self._closed = False
        self.on_space: Callable[[], None] = _ignore
        self.on_pressure: Callable[[], None] = _ignore
        self.total_bytes = sum(file.size_bytes for file in files)
        self.spare_bytes = self.total_bytes
        self.largest_file_bytes = max(file.size_bytes for file in files)
        self.alignment = max(alignment_of(file) for file in files)

    @classmethod
    def open(cls, disk: Disk, clock: Clock, directory: str, limits: JournalLimits) -> Ring:
        """Opens or creates the ring. Blocking. Every block of an earlier run may be overwritten."""
        files = open_files(disk.files, directory, limits.ring_bytes_max)
        if not files:
            size_bytes = padded(min(_FIRST_FILE_BYTES, limits.file_bytes_max), ALIGNMENT_MIN)
            files = [create_file(disk.files, directory, 1, size_bytes)]
        return cls(disk, clock, directory, limits, files)

    @property
    def file_count(self) -> int:
        """The number of files, free and full ones included."""
        return len(self._free) + len(self._full) + (self._current is not None)

    @property
    def under_pressure(self) -> bool:
        """True if a full file should be released: more than half of the ring's limit is used, or a block is waiting for
        space."""
        if not self._full:
            return False
        return self._wanted_bytes > 0 or 2 * (self.total_bytes - self.spare_bytes) > self._limits.ring_bytes_max

    def has_place_beside(self, block_bytes: int) -> bool:
        """Reports whether a block fits after the last one, in the same file."""
        return self._current is not None and self._current.left_bytes >= block_bytes

    def place(self, block_bytes: int, sequence: int) -> tuple[RingFile, int] | None:
        """Reserves the file and offset for a block. None if it has to wait for `on_space`."""
        current = self._current
        if current is None or current.left_bytes < block_bytes:
            current = self._advance(block_bytes)
            if current is None:
                self._wanted_bytes = block_bytes
                self._grow_if_needed()
                self._clock.call_soon(self._tell_pressure)
                return None
        self._wanted_bytes = 0
        offset = current.position
        if offset == 0:
            current.lap = sequence
        current.position += block_bytes
        current.last_sequence = sequence
        self.spare_bytes -= block_bytes
        self._grow_if_needed()
        return current, offset

    def oldest(self, sequence_max: int) -> tuple[int, dict[JournaledLog, int]] | None:
        """Returns the last sequence of the oldest full files, at most `sequence_max`, and what must be synced to
        release them.

        A sync of a log covers all of its entries, so later files that add few logs are released by the same syncs.
        One file at a time would sync the same logs again for each file. The number of logs is at most doubled by
        them, because the writer that waits for the first file waits for their syncs too.
        """
        sequence, ends = 0, dict[JournaledLog, int]()
        count_max = 0
        for file in self._full:
            if file.last_sequence > sequence_max or (sequence and len(ends.keys() | file.ends.keys()) > count_max):
                break
            sequence = file.last_sequence
            _add_ends(ends, file)
            count_max = count_max or LOGS_FACTOR * len(ends)
        return (sequence, ends) if sequence else None

    def all_ends(self) -> dict[JournaledLog, int]:
        """Returns what must be synced to release everything."""
        ends: dict[JournaledLog, int] = {}
        for file in [*self._full, self._current]:
            if file is not None:
                _add_ends(ends, file)
        return ends

    def release(self, sequence: int) -> None:
        """Frees the files whose blocks are all at or below the sequence."""
        while self._full and self._full[0].last_sequence <= sequence:
            self._recycle(self._full.popleft())
        current = self._current
        if current is not None and current.position and current.last_sequence <= sequence:
            self.spare_bytes += current.position
            current.rewind()

    def close(self) -> None:
        """Closes the files. Nothing may be in flight."""
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        for file in [*self._free, *self._full, self._current]:
            if file is not None:
                file.file.close()

    def _advance(self, block_bytes: int) -> RingFile | None:
        """Moves from the current file to a free one. If there is none, the current file is left anyway, so that it can
        be released: no later block may be written before the one that waits."""
        left, self._current = self._current, None
        if left is not None and left.position:
            self._full.append(left)
            self.spare_bytes -= left.left_bytes
        elif left is not None:
            self._free.append(left)
        for file in self._free:
            if file.size_bytes >= block_bytes:
                self._free.remove(file)
                self._current = file
                break
        if self.under_pressure:
            self._clock.call_soon(self._tell_pressure)
        return self._current

    def _recycle(self, file: RingFile) -> None:
        file.rewind()
        if self.total_bytes <= self._limits.ring_bytes_max or file.size_bytes <= self._limits.file_bytes_max:
            self._free.append(file)
            self.spare_bytes += file.size_bytes
            return
        self.total_bytes -= file.size_bytes
        self._measure_largest()
        self._disk.journal_queue.call(lambda: remove_file(self._disk.files, file), _log_failed_removal)

    def _grow_if_needed(self) -> None:
        if self._growing or self._retry is not None or self._closed:
            return
        size_bytes = self._next_file_bytes()
        if not size_bytes:
            return
        self._growing = True
        number = self._next_number
        self._next_number += 1
        self._disk.journal_queue.call(
            lambda: create_file(self._disk.files, self._directory, number, size_bytes), self._on_grown
        )

    def _next_file_bytes(self) -> int:
        """Returns the size of the next file; 0 if none is needed or allowed."""
        wanted_bytes = self._wanted_bytes
        if wanted_bytes > self.largest_file_bytes:
            return padded(wanted_bytes, self.alignment)
        if not wanted_bytes and 2 * self.spare_bytes >= self.total_bytes:
            return 0
        size_bytes = min(2 * self.largest_file_bytes, self._limits.file_bytes_max)
        size_bytes = min(size_bytes, self._limits.ring_bytes_max - self.total_bytes)
        size_bytes -= size_bytes % self.alignment
        return size_bytes if size_bytes >= max(wanted_bytes, self.alignment) else 0

    def _on_grown(self, file: RingFile | None, error: BaseException | None) -> None:
        self._growing = False
        if file is None:
            self._on_growth_failed(error)
            return
        if self._closed:
            file.file.close()
            return
        self._growth_failed = False
        self._free.append(file)
        self.total_bytes += file.size_bytes
        self.spare_bytes += file.size_bytes
        self.alignment = max(self.alignment, alignment_of(file))
        self._measure_largest()
        self.on_space()
        self._grow_if_needed()

    def _on_growth_failed(self, error: BaseException | None) -> None:
        """Handles a failed growth, most often due to a full disk. The existing files stay in use; the ring retries
        later and logs the problem once."""
        if self._closed:
            return
        if not self._growth_failed:
            _log.warning(
                "the journal stays at %d bytes because a new file could not be created: %s", self.total_bytes, error
            )
        self._growth_failed = True
        self._retry = self._clock.call_later(_RETRY_MS, self._retry_growth)

    def _retry_growth(self) -> None:
        self._retry = None
        self._grow_if_needed()

    def _measure_largest(self) -> None:
        files = [file for file in [*self._free, *self._full, self._current] if file is not None]
        self.largest_file_bytes = max((file.size_bytes for file in files), default=0)

    def _tell_pressure(self) -> None:
        if self.under_pressure and not self._closed:
            self.on_pressure()


def _add_ends(ends: dict[JournaledLog, int], file: RingFile) -> None:
    """Adds the ends of a later file. A log without an end there keeps the one it has."""
    for log, end in file.ends.items():
        ends[log] = end if end >= 0 else ends.get(log, end)


def _ignore() -> None: ...


def _log_failed_removal(_result: None, error: BaseException | None) -> None:
    if error is not None:
        _log.warning("could not remove an unused journal file: %s", error)

"""A sparse index that finds offsets and timestamps in a segment, with one entry for every few kilobytes.

An entry gives the base offset and position of a batch, and the highest timestamp of the segment up to and including
that batch. Offsets, positions and this running maximum never decrease, so one index serves look-ups by offset and by
time. Both use bisection, followed by a walk over batch headers.

The file is a plain sequence of entries, each with a checksum. It only speeds up look-ups and is never the source of
truth: if anything in it is inconsistent (not increasing, or beyond the segment), it is rebuilt from the segment.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from struct import Struct

import crc32c

_ENTRY = Struct(">IIq")
_CRC = Struct(">I")
ENTRY_BYTES = _ENTRY.size + _CRC.size


def note_run_plainly(
    offsets: array[int],
    positions: array[int],
    times: array[int],
    due: int,
    interval_bytes: int,
    bases: list[int],
    base_offset: int,
    begins: list[int],
    begin: int,
    timestamps: list[int],
    newest: int,
) -> tuple[int, int]:
    """Adds the entries of many batches to the columns of an index. Returns the position at which the next entry is due,
    and the newest timestamp so far. The pure Python version of the compiled function."""
    for base, position, timestamp in zip(bases, begins, timestamps, strict=True):
        newest = max(newest, timestamp)
        if begin + position >= due:
            offsets.append(base - base_offset)
            positions.append(begin + position)
            times.append(newest)
            due = begin + position + interval_bytes
    return due, newest


def _best_note_run() -> Callable[..., tuple[int, int]]:
    try:
        from ottla.broker.storage import _index
    except ImportError:
        return note_run_plainly
    return _index.note_run


note_run = _best_note_run()


class SparseIndex:
    """The index of one segment."""

    __slots__ = ("_due", "_interval_bytes", "_max_timestamps", "_positions", "_relative_offsets", "persisted")

    def __init__(self, interval_bytes: int) -> None:
        self._interval_bytes = interval_bytes
        self._relative_offsets = array("I")
        self._positions = array("I")
        self._max_timestamps = array("q")
        self._due = 0
        """The first batch at or after this position is indexed next."""
        self.persisted = 0
        """Number of entries in the index file."""

    def __len__(self) -> int:
        return len(self._max_timestamps)  # `note` appends to this column last; a disk thread may read in between

    def note(self, relative_offset: int, position: int, max_timestamp: int) -> None:
        """Notes an appended batch. It is indexed if the last indexed batch is far enough back."""
        if position >= self._due:
            self._relative_offsets.append(relative_offset)
            self._positions.append(position)
            self._max_timestamps.append(max_timestamp)
            self._due = position + self._interval_bytes

    def note_run(
        self, bases: list[int], base_offset: int, positions: list[int], begin: int, timestamps: list[int], newest: int
    ) -> int:
        """Notes many appended batches, in order, at `positions` relative to `begin`. Takes the newest timestamp before
        them and returns the newest including them."""
        self._due, newest = note_run(
            self._relative_offsets,
            self._positions,
            self._max_timestamps,
            self._due,
            self._interval_bytes,
            bases,
            base_offset,
            positions,
            begin,
            timestamps,
            newest,
        )
        return newest

    def entry_for_offset(self, relative_offset: int) -> tuple[int, int]:
        """Returns the (relative offset, position) of a batch at or before the one that holds the offset."""
        index = bisect_right(self._relative_offsets, relative_offset) - 1
        return (self._relative_offsets[index], self._positions[index]) if index >= 0 else (0, 0)

    def position_for_offset(self, relative_offset: int) -> int:
        """Returns the position of a batch at or before the one that holds the offset."""
        return self.entry_for_offset(relative_offset)[1]

    def position_for_time(self, timestamp_ms: int) -> int:
        """Returns a position before which every batch is older."""
        index = bisect_left(self._max_timestamps, timestamp_ms) - 1
        return self._positions[index] if index >= 0 else 0

    def first_timestamp(self) -> int:
        """Returns the timestamp of the first batch; -1 if it is unknown."""
        return self._max_timestamps[0] if len(self) else -1

    def last_entry(self) -> tuple[int, int, int] | None:
        """Returns the (relative offset, position, highest timestamp so far) of the last indexed batch."""
        if not self._positions:
            return None
        return self._relative_offsets[-1], self._positions[-1], self._max_timestamps[-1]

    def truncate(self, position: int) -> None:
        """Drops the entries at or beyond a position."""
        keep = bisect_left(self._positions, position)
        del self._relative_offsets[keep:], self._positions[keep:], self._max_timestamps[keep:]
        self._due = self._positions[-1] + self._interval_bytes if keep else 0
        self.persisted = min(self.persisted, keep)

    def unpersisted(self) -> bytes:
        """Returns the bytes to append to the index file."""
        entries = range(self.persisted, len(self))
        return b"".join(_pack(self._relative_offsets[i], self._positions[i], self._max_timestamps[i]) for i in entries)

    @classmethod
    def parse(cls, data: bytes, interval_bytes: int, segment_bytes: int) -> SparseIndex:
        """Parses entries as long as they are consistent with a segment of that size."""
        index = cls(interval_bytes)
        previous = (-1, -1, -(2**63))
        for at in range(0, len(data) - len(data) % ENTRY_BYTES, ENTRY_BYTES):
            entry: tuple[int, int, int] = _ENTRY.unpack_from(data, at)
            if data[at : at + ENTRY_BYTES] != _pack(*entry):
                break
            grows = entry[0] > previous[0] and entry[1] > previous[1] and entry[2] >= previous[2]
            if not grows or entry[1] >= segment_bytes:
                break
            index._relative_offsets.append(entry[0])
            index._positions.append(entry[1])
            index._max_timestamps.append(entry[2])
            previous = entry
        index.persisted = len(index)
        index._due = index._positions[-1] + interval_bytes if len(index) else 0
        return index


def _pack(relative_offset: int, position: int, max_timestamp: int) -> bytes:
    entry = _ENTRY.pack(relative_offset, position, max_timestamp)
    return entry + _CRC.pack(crc32c.crc32c(entry))

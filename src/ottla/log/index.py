"""Where in a segment an offset or a time is found: one entry for every few kilobytes.

An entry names a batch by its base offset and position, and carries the highest timestamp of the segment up to and
including that batch. Offsets and positions only grow, and so does that running maximum: one index serves look-ups by
offset and by time, both by bisection, followed by a walk over batch headers.

The file is a plain sequence of entries, each with a checksum. It is an accelerator, never a source of truth: whatever
is odd about it (not growing, beyond the segment) makes it be built again from the segment.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from struct import Struct

import crc32c

_ENTRY = Struct(">IIq")
_CRC = Struct(">I")
ENTRY_BYTES = _ENTRY.size + _CRC.size


class SparseIndex:
    __slots__ = ("_interval_bytes", "_last_indexed", "_max_timestamps", "_positions", "_relative_offsets", "persisted")

    def __init__(self, interval_bytes: int) -> None:
        self._interval_bytes = interval_bytes
        self._relative_offsets = array("I")
        self._positions = array("I")
        self._max_timestamps = array("q")
        self._last_indexed = -interval_bytes
        self.persisted = 0
        """How many entries the index file has."""

    def __len__(self) -> int:
        return len(self._max_timestamps)  # what `note` adds last: a disk thread may look in between

    def note(self, relative_offset: int, position: int, max_timestamp: int) -> None:
        """A batch was appended. Indexed if the last indexed one lies far enough back."""
        if position - self._last_indexed >= self._interval_bytes:
            self._relative_offsets.append(relative_offset)
            self._positions.append(position)
            self._max_timestamps.append(max_timestamp)
            self._last_indexed = position

    def note_run(self, relative_offsets: list[int], positions: list[int], max_timestamps: list[int]) -> None:
        """Many batches were appended, in this order; the first timestamp counts what the segment had before. Only
        those that are indexed are looked at."""
        interval_bytes, count = self._interval_bytes, len(positions)
        newest, looked_at = max_timestamps[0], 0
        place = bisect_left(positions, self._last_indexed + interval_bytes)
        while place < count:
            newest = max(newest, *max_timestamps[looked_at : place + 1])
            looked_at = place + 1
            position = positions[place]
            self._relative_offsets.append(relative_offsets[place])
            self._positions.append(position)
            self._max_timestamps.append(newest)
            self._last_indexed = position
            place = bisect_left(positions, position + interval_bytes, looked_at)

    def entry_for_offset(self, relative_offset: int) -> tuple[int, int]:
        """(relative offset, position) of a batch at or before the one that holds the offset."""
        index = bisect_right(self._relative_offsets, relative_offset) - 1
        return (self._relative_offsets[index], self._positions[index]) if index >= 0 else (0, 0)

    def position_for_offset(self, relative_offset: int) -> int:
        return self.entry_for_offset(relative_offset)[1]

    def position_for_time(self, timestamp_ms: int) -> int:
        """A position before which every batch is older."""
        index = bisect_left(self._max_timestamps, timestamp_ms) - 1
        return self._positions[index] if index >= 0 else 0

    def first_timestamp(self) -> int:
        """Of the first batch; -1 if that is not known."""
        return self._max_timestamps[0] if len(self) else -1

    def last_entry(self) -> tuple[int, int, int] | None:
        """(relative offset, position, running maximum of timestamps) of the last batch that has an entry."""
        if not self._positions:
            return None
        return self._relative_offsets[-1], self._positions[-1], self._max_timestamps[-1]

    def truncate(self, position: int) -> None:
        """Forgets the entries at or beyond a position."""
        keep = bisect_left(self._positions, position)
        del self._relative_offsets[keep:], self._positions[keep:], self._max_timestamps[keep:]
        self._last_indexed = self._positions[-1] if keep else -self._interval_bytes
        self.persisted = min(self.persisted, keep)

    def unpersisted(self) -> bytes:
        """What has to be appended to the file."""
        entries = range(self.persisted, len(self))
        return b"".join(_pack(self._relative_offsets[i], self._positions[i], self._max_timestamps[i]) for i in entries)

    @classmethod
    def parse(cls, data: bytes, interval_bytes: int, segment_bytes: int) -> SparseIndex:
        """Takes entries as long as they make sense for a segment of that size."""
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
        index._last_indexed = index._positions[-1] if len(index) else -interval_bytes
        return index


def _pack(relative_offset: int, position: int, max_timestamp: int) -> bytes:
    entry = _ENTRY.pack(relative_offset, position, max_timestamp)
    return entry + _CRC.pack(crc32c.crc32c(entry))

"""Batches that are not yet in a log's segment files, gathered so that one call writes many of them.

The segments of a `disk` log never hold data that its journal does not: a write ends where the journal has got to. After
a failure, the journal and the synced part of a segment are therefore all there is to know. It also means that a flush,
which makes space in the journal, never has to wait for that space.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

from ottla.broker.storage.segment import Segment
from ottla.protocol.records.produce_run import BatchRun

GATHERED_BYTES_MAX = 8 * 1024 * 1024


@dataclass(slots=True, eq=False)
class PendingWrite:
    """Contiguous batches of one segment that one call writes."""

    segment: Segment
    position: int
    batches: list[memoryview] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """The next offset after each batch."""
    size_bytes: int = 0

    @property
    def end_offset(self) -> int:
        """The offset after the last batch."""
        return self.ends[-1]

    def split_off(self, count: int) -> PendingWrite:
        """Keeps the first `count` batches and returns a write with the others."""
        rest = PendingWrite(self.segment, self.position, self.batches[count:], self.ends[count:])
        rest.size_bytes = sum(map(len, rest.batches))
        del self.batches[count:], self.ends[count:]
        self.size_bytes -= rest.size_bytes
        rest.position += self.size_bytes
        return rest


class PendingWrites:
    """The pending writes of one log, ordered by offset. One write is in flight at a time."""

    __slots__ = ("_in_flight", "_writes", "size_bytes")

    def __init__(self) -> None:
        self._writes: deque[PendingWrite] = deque()
        self._in_flight: PendingWrite | None = None
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._writes)

    @property
    def is_writing(self) -> bool:
        """True while a write is in flight."""
        return self._in_flight is not None

    def add(self, segment: Segment, position: int, end_offset: int, batch: memoryview) -> None:
        """Adds a batch at this position of the segment, to the last write if it continues that one."""
        last = self._last_for(segment, position)
        last.batches.append(batch)
        last.ends.append(end_offset)
        size = len(batch)
        last.size_bytes += size
        self.size_bytes += size

    def add_run(self, segment: Segment, position: int, run: BatchRun) -> None:
        """Adds all batches of a run, from this position of the segment on."""
        last = self._last_for(segment, position)
        last.batches += run.batches
        last.ends += run.ends
        last.size_bytes += run.size_bytes
        self.size_bytes += run.size_bytes

    def _last_for(self, segment: Segment, position: int) -> PendingWrite:
        last = self._writes[-1] if self._writes else None
        if (
            last is None
            or last is self._in_flight
            or last.segment is not segment
            or last.size_bytes >= GATHERED_BYTES_MAX
        ):
            last = PendingWrite(segment, position)
            self._writes.append(last)
        return last

    def begin(self, upto: int) -> PendingWrite | None:
        """Begins the next write, up to the offset `upto`. None if there is nothing to write, or a write is in
        flight."""
        if self._in_flight is not None or not self._writes:
            return None
        write = self._writes[0]
        if write.end_offset > upto:
            count = bisect_right(write.ends, upto)
            if not count:
                return None
            self._writes.insert(1, write.split_off(count))
        self._in_flight = write
        return write

    def end(self, write: PendingWrite, *, is_written: bool) -> bool:
        """Ends a write. False if it no longer counts because the segment was rewritten meanwhile."""
        self._in_flight = None
        if not self._writes or self._writes[0] is not write:
            return False
        if is_written:
            self._writes.popleft()
            self.size_bytes -= write.size_bytes
        return True

    def drop_below(self, offset: int) -> None:
        """Drops writes below the offset, which the segments have received in another way."""
        while self._writes and self._writes[0].end_offset <= offset:
            self.size_bytes -= self._writes.popleft().size_bytes

    def bytes_above(self, offset: int, segment: Segment) -> int:
        """Returns how many pending bytes of the segment lie above the offset."""
        return sum(
            len(batch)
            for write in self._writes
            if write.segment is segment
            for batch, end in zip(write.batches, write.ends, strict=True)
            if end > offset
        )

"""Batches in memory, ordered by offset: the tail cache of a log on disk, or a whole memory log."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from ottla.protocol.records.produce_run import BatchRun

TRIM_AFTER = 512
NEWEST_BYTES_MAX = 64 * 1024
"""A read of less than this at the end of the log does not count for the bound of the tail cache."""
_GONE = memoryview(b"")


class Slice(NamedTuple):
    """Whole batches, ready to be sent."""

    buffers: list[memoryview]
    size_bytes: int
    next_offset: int


class BatchList:
    """A list of batches that appends at the end, drops at the front and finds by offset. It keeps views and never
    copies them."""

    __slots__ = ("_bases", "_dropped_bytes", "_ends", "_head", "_size_ends", "_views")

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._ends: list[int] = []
        self._views: list[memoryview] = []
        self._size_ends: list[int] = []
        """Cumulative bytes up to the end of each batch, since the list was created."""
        self._dropped_bytes = 0
        """The part of those bytes that lies before the first batch."""
        self._head = 0

    def __len__(self) -> int:
        return len(self._bases) - self._head

    @property
    def size_bytes(self) -> int:
        """The size of the batches in the list."""
        return self._size_ends[-1] - self._dropped_bytes if self._size_ends else 0

    @property
    def first_offset(self) -> int | None:
        """The base offset of the first batch; None if the list is empty."""
        return self._bases[self._head] if len(self) else None

    @property
    def first_view(self) -> memoryview:
        """The first batch. The list must not be empty."""
        return self._views[self._head]

    def append(self, base_offset: int, end_offset: int, view: memoryview) -> None:
        """Adds a batch at the end; `end_offset` is the offset after it."""
        self._bases.append(base_offset)
        self._ends.append(end_offset)
        self._views.append(view)
        self._size_ends.append((self._size_ends[-1] if self._size_ends else self._dropped_bytes) + len(view))

    def append_run(self, run: BatchRun) -> None:
        """Adds all batches of a run at the end."""
        self._bases += run.bases
        self._ends += run.ends
        self._views += run.batches
        size_ends = self._size_ends
        size_end = size_ends[-1] if size_ends else self._dropped_bytes
        for view in run.batches:
            size_end += len(view)
            size_ends.append(size_end)

    def drop_oldest(self, count_max: int, upto: int, size_bytes: int, entry_bytes: int) -> tuple[int, int]:
        """Drops the oldest batches until they add up to `size_bytes`, counting `entry_bytes` of overhead for each, but
        none that ends above `upto`. Returns their number and their size without overhead."""
        head, ends, size_ends = self._head, self._ends, self._size_ends
        limit = min(head + count_max, len(ends))
        at, wanted_end = head, self._dropped_bytes + size_bytes
        size_end = self._dropped_bytes
        while at < limit and size_end < wanted_end and ends[at] <= upto:
            size_end = size_ends[at]
            wanted_end -= entry_bytes
            at += 1
        return at - head, self._drop_before(at) if at > head else 0

    def _drop_before(self, index: int) -> int:
        """Drops the batches before an index and returns their size."""
        head = self._head
        dropped_bytes = self._size_ends[index - 1] - self._dropped_bytes
        self._dropped_bytes += dropped_bytes
        self._views[head:index] = [_GONE] * (index - head)
        self._head = index
        if index >= TRIM_AFTER and index * 2 >= len(self._bases):
            del self._bases[:index], self._ends[:index], self._views[:index], self._size_ends[:index]
            self._head = 0
        return dropped_bytes

    def drop_from(self, offset: int) -> int:
        """Drops every batch that ends above the offset and returns their size."""
        keep = max(bisect_right(self._ends, offset, lo=self._head), self._head)
        size = sum(map(len, self._views[keep:]))
        del self._bases[keep:], self._ends[keep:], self._views[keep:], self._size_ends[keep:]
        return size

    def drop_all(self) -> int:
        """Drops all batches and returns their size."""
        size = self.size_bytes
        self._bases, self._ends, self._views, self._size_ends = [], [], [], []
        self._head = self._dropped_bytes = 0
        return size

    def covers(self, offset: int) -> bool:
        """Returns whether the offset is between the first and the last batch in the list."""
        head = self._head
        return head < len(self._bases) and self._bases[head] <= offset < self._ends[-1]

    def bytes_from(self, offset: int) -> int:
        """Returns the size of the batches from the one that holds the offset. The list must cover the offset."""
        index = bisect_right(self._bases, offset, lo=self._head) - 1
        return self._size_ends[-1] - (self._size_ends[index - 1] if index else self._dropped_bytes)

    def read(self, offset: int, max_bytes: int, upto: int) -> Slice:
        """Reads whole batches from the one that holds `offset`, none that ends above `upto`. The first may exceed
        `max_bytes`, so that a reader always makes progress."""
        ends, size_ends = self._ends, self._size_ends
        index = max(bisect_right(self._bases, offset, lo=self._head) - 1, self._head)
        limit = bisect_right(ends, upto, lo=index)
        if limit == index:
            return Slice([], 0, offset)
        before = size_ends[index - 1] if index else self._dropped_bytes
        at = bisect_left(size_ends, before + max_bytes, lo=index, hi=limit)
        fits = at < limit and (at == index or size_ends[at] == before + max_bytes)
        stop = at + 1 if fits else at
        return Slice(self._views[index:stop], size_ends[stop - 1] - before, ends[stop - 1])

    def newest(self, offset: int, upto: int) -> Slice | None:
        """Returns what `read` returns if the last batch is small and begins at the offset, otherwise None. This is the
        case of a reader that has caught up, without a search."""
        bases, ends = self._bases, self._ends
        if self._head >= len(bases) or bases[-1] != offset or ends[-1] > upto:
            return None
        view = self._views[-1]
        return Slice([view], len(view), ends[-1]) if len(view) <= NEWEST_BYTES_MAX else None

    def views_from(self, offset: int) -> list[tuple[int, int, memoryview]]:
        """Returns (base, end, batch) of every batch that ends above `offset`."""
        index = max(bisect_right(self._bases, offset, lo=self._head) - 1, self._head)
        return list(zip(self._bases[index:], self._ends[index:], self._views[index:], strict=True))

"""Batches held in memory, in the order of their offsets: the tail cache of a log on disk, or a whole memory log."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from ottla.records.produce_run import BatchRun

TRIM_AFTER = 512
_GONE = memoryview(b"")


class Slice(NamedTuple):
    """Whole batches, as they are to go to a socket."""

    buffers: list[memoryview]
    size_bytes: int
    next_offset: int


class BatchList:
    """Appends at the end, drops at the front, finds by offset. Views are kept, never copied."""

    __slots__ = ("_bases", "_ends", "_head", "_views", "size_bytes")

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._ends: list[int] = []
        self._views: list[memoryview] = []
        self._head = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._bases) - self._head

    @property
    def first_offset(self) -> int | None:
        return self._bases[self._head] if len(self) else None

    @property
    def first_end(self) -> int | None:
        """Where the oldest batch ends: it may be given up once everything below is elsewhere."""
        return self._ends[self._head] if len(self) else None

    @property
    def first_view(self) -> memoryview:
        return self._views[self._head]

    def append(self, base_offset: int, end_offset: int, view: memoryview) -> None:
        self._bases.append(base_offset)
        self._ends.append(end_offset)
        self._views.append(view)
        self.size_bytes += len(view)

    def append_run(self, run: BatchRun) -> None:
        self._bases += run.bases
        self._ends += run.ends
        self._views += run.batches
        self.size_bytes += run.size_bytes

    def drop_first(self) -> int:
        """Gives up the oldest batch and returns its size."""
        head = self._head
        size = len(self._views[head])
        self._views[head] = _GONE
        self.size_bytes -= size
        self._move_head(head + 1)
        return size

    def drop_oldest(self, count_max: int, upto: int, size_bytes: int, entry_bytes: int) -> tuple[int, int]:
        """Gives up the oldest batches, none that ends above `upto`, until they come to a size, with so many bytes for
        each besides its own. Returns their number and their own size."""
        head, ends, views = self._head, self._ends, self._views
        limit = min(head + count_max, len(ends))
        at, dropped_bytes = head, 0
        while at < limit and dropped_bytes + (at - head) * entry_bytes < size_bytes and ends[at] <= upto:
            dropped_bytes += len(views[at])
            views[at] = _GONE
            at += 1
        self.size_bytes -= dropped_bytes
        self._move_head(at)
        return at - head, dropped_bytes

    def _move_head(self, head: int) -> None:
        self._head = head
        if head >= TRIM_AFTER and head * 2 >= len(self._bases):
            del self._bases[:head], self._ends[:head], self._views[:head]
            self._head = 0

    def drop_from(self, offset: int) -> int:
        """Gives up every batch that ends above the offset and returns their size."""
        keep = max(bisect_right(self._ends, offset, lo=self._head), self._head)
        size = sum(map(len, self._views[keep:]))
        del self._bases[keep:], self._ends[keep:], self._views[keep:]
        self.size_bytes -= size
        return size

    def drop_all(self) -> int:
        size = self.size_bytes
        self._bases, self._ends, self._views = [], [], []
        self._head = self.size_bytes = 0
        return size

    def covers(self, offset: int) -> bool:
        head = self._head
        return head < len(self._bases) and self._bases[head] <= offset < self._ends[-1]

    def read(self, offset: int, max_bytes: int, upto: int) -> Slice:
        """Whole batches from the one that holds `offset`, none that ends above `upto`; the first may be larger than
        `max_bytes`, so that a reader always makes progress."""
        index = max(bisect_right(self._bases, offset, lo=self._head) - 1, self._head)
        ends, views = self._ends, self._views
        buffers: list[memoryview] = []
        size = 0
        next_offset = offset
        count = len(ends)
        while index < count and ends[index] <= upto:
            view = views[index]
            if buffers and size + len(view) > max_bytes:
                break
            buffers.append(view)
            size += len(view)
            next_offset = ends[index]
            index += 1
            if size >= max_bytes:
                break
        return Slice(buffers, size, next_offset)

    def views_from(self, offset: int) -> list[tuple[int, int, memoryview]]:
        """(base, end, batch) of every batch that ends above `offset`."""
        index = max(bisect_right(self._bases, offset, lo=self._head) - 1, self._head)
        return list(zip(self._bases[index:], self._ends[index:], self._views[index:], strict=True))

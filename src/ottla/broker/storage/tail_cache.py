"""The newest batches of all logs in memory, up to a bound, so that readers that have caught up never touch the disk.

The oldest batch of the whole broker is evicted first, and only after it has been written to its segment: until then it
can be read only from here (safety: reads). A batch that a transport is still sending stays alive by its own reference.

The bound follows the readers. Batches that nobody reads are evicted early, so that the next frames reuse their memory
while it is still in the processor's caches: frames that cycle through 32 MB cost a bare server a third more than frames
that cycle through 2 MB (ADR 19). A reader that starts in the older half of the cache, or before it, enlarges the bound
at once. The bound shrinks only after several times the maximum size has passed through the cache, and then to twice the
depth that the deepest reader needed meanwhile, because the lag of readers varies.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from ottla.broker.storage.batches import BatchList, Slice
from ottla.protocol.records.produce_run import BatchRun

ENTRY_BYTES = 400
"""Overhead of a cached batch besides its bytes: objects and list slots. Without it, a cache of small batches would take
several times its bound."""
LEAST_BYTES = 2 * 1024 * 1024
"""The smallest bound, kept for readers that are yet to come."""
WINDOW = 8
"""The bound shrinks after this many times the maximum size has passed through the cache."""


class CachedLog(Protocol):
    """A log whose newest batches are cached."""

    @property
    def tail(self) -> BatchList:
        """The newest batches, which the cache appends to and drops from."""
        ...

    @property
    def written_end(self) -> int:
        """The offset up to which the batches are in the segment files, so that they may be dropped."""
        ...


class TailCache:
    """Caches the tails of all logs of a broker."""

    __slots__ = (
        "_bound_bytes",
        "_deepest_bytes",
        "_filling_bytes",
        "_held",
        "_least_bytes",
        "_order",
        "_passed_bytes",
        "_size_bytes",
        "_size_bytes_max",
        "_unwritten_bytes_max",
        "_window_bytes",
    )

    def __init__(
        self,
        size_bytes_max: int,
        unwritten_bytes_max: int = 1 << 28,
        *,
        least_bytes: int = LEAST_BYTES,
        window: int = WINDOW,
    ) -> None:
        self._size_bytes_max = size_bytes_max
        self._window_bytes = window * size_bytes_max
        self._least_bytes = min(least_bytes, size_bytes_max)
        self._bound_bytes = size_bytes_max
        self._deepest_bytes = 0
        """How far back a reader has started since the bound was last adjusted."""
        self._passed_bytes = 0
        """Bytes evicted since the bound was last adjusted."""
        self._filling_bytes = size_bytes_max + unwritten_bytes_max // 2
        self._unwritten_bytes_max = size_bytes_max + unwritten_bytes_max
        self._size_bytes = 0
        self._order: deque[tuple[CachedLog, int]] = deque()
        """The order of eviction, oldest first: a log, and how many of its batches to evict in a row."""
        self._held: dict[CachedLog, int] = {}
        """Evictions that each log owes because its batches are not written yet. A log that stalls must not keep the
        batches of others in memory."""

    @property
    def size_bytes(self) -> int:
        """The memory in use, including an estimate for each batch's entry."""
        return self._size_bytes

    @property
    def bound_bytes(self) -> int:
        """The number of bytes above which the oldest batches are dropped."""
        return self._bound_bytes

    @property
    def is_filling(self) -> bool:
        """True if data arrives faster than the disk takes it. Producers wait from here on, so that the other half of
        the memory for unwritten records remains for fetches by followers."""
        return self._size_bytes > self._filling_bytes

    @property
    def is_overfull(self) -> bool:
        """True if the memory for unwritten records is used up: nothing more may be appended."""
        return self._size_bytes > self._unwritten_bytes_max

    def add(self, log: CachedLog, base_offset: int, end_offset: int, batch: memoryview) -> None:
        """Adds a batch to the tail of a log, and drops old ones if the cache is too large."""
        log.tail.append(base_offset, end_offset, batch)
        self._note(log, 1)
        self._size_bytes += len(batch) + ENTRY_BYTES
        if self._size_bytes > self._bound_bytes:
            self._shrink()

    def add_run(self, log: CachedLog, run: BatchRun) -> None:
        """Adds all batches of a run to the tail of a log, and drops old ones if the cache is too large."""
        log.tail.append_run(run)
        count = len(run)
        self._note(log, count)
        self._size_bytes += run.size_bytes + count * ENTRY_BYTES
        if self._size_bytes > self._bound_bytes:
            self._shrink()

    def _note(self, log: CachedLog, count: int) -> None:
        order = self._order
        if order and order[-1][0] is log:
            order[-1] = log, order[-1][1] + count
        else:
            order.append((log, count))

    def on_written(self, log: CachedLog) -> None:
        """Resumes the evictions that a log owes, after one of its segment writes has ended."""
        turns = self._held.pop(log, 0)
        if turns:
            self._order.appendleft((log, turns))
        if self._size_bytes > self._bound_bytes:
            self._shrink()

    def read(self, log: CachedLog, offset: int, max_bytes: int, upto: int) -> Slice:
        """Reads from an offset that the log has in the cache."""
        tail = log.tail
        depth_bytes = self._size_bytes * tail.bytes_from(offset) // tail.size_bytes
        if depth_bytes > self._deepest_bytes:
            self._deepest_bytes = depth_bytes
            self._bound_bytes = min(max(self._bound_bytes, 2 * depth_bytes), self._size_bytes_max)
        return tail.read(offset, max_bytes, upto)

    def on_missed(self) -> None:
        """Sets the bound to its maximum: a reader starts at an offset that only the segments have."""
        self._deepest_bytes = self._bound_bytes = self._size_bytes_max

    def forget_below(self, log: CachedLog, offset: int) -> None:
        """Evicts the batches below an offset that have been rewritten; they are read from the segments from now on."""
        log_bytes = log.tail.size_bytes + len(log.tail) * ENTRY_BYTES
        count, size_bytes = log.tail.drop_oldest(len(log.tail), offset, log_bytes, ENTRY_BYTES)
        self._size_bytes -= size_bytes + count * ENTRY_BYTES

    def forget(self, log: CachedLog) -> None:
        """Evicts everything of a log that is closed or deleted. Its entries in the eviction order expire by
        themselves."""
        self._held.pop(log, None)
        self._size_bytes -= len(log.tail) * ENTRY_BYTES
        self._size_bytes -= log.tail.drop_all()

    def _shrink(self) -> None:
        order, bound_bytes = self._order, self._bound_bytes
        while order and (excess_bytes := self._size_bytes - bound_bytes) > 0:
            log, turns = order.popleft()
            count, size_bytes = log.tail.drop_oldest(turns, log.written_end, excess_bytes, ENTRY_BYTES)
            size_bytes += count * ENTRY_BYTES
            self._size_bytes -= size_bytes
            self._passed_bytes += size_bytes
            if count == turns or not len(log.tail):
                continue
            if self._size_bytes > bound_bytes:
                self._held[log] = self._held.get(log, 0) + turns - count
            else:
                order.appendleft((log, turns - count))
        if self._passed_bytes >= self._window_bytes:
            self._bound_bytes = min(max(2 * self._deepest_bytes, self._least_bytes), self._size_bytes_max)
            self._passed_bytes = self._deepest_bytes = 0

"""The newest batches of all logs in memory, up to a bound, so that caught-up readers never touch the disk.

The oldest batch of the whole broker goes first, and only once its segment has been written: until then this is the
only place it can be read from (SAFETY 29). A batch that a transport still sends stays alive by its own reference.

The bound follows the readers. What nobody reads is given up early, so that its memory takes the next frames while the
processor's caches still have it: frames that go round in 32 MB cost the floor a third more than in 2 MB (ADR 19). A
reader who begins in the older half of what is held, or before it, gets a larger cache at once; one that shrinks does so
after several times as many bytes as it may hold at most, and to twice what the deepest reader needed meanwhile: readers
lag now more and now less.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from ottla.log.batches import BatchList, Slice
from ottla.records.produce_run import BatchRun

ENTRY_BYTES = 400
"""What a cached batch costs besides its bytes: objects, list places. Without it, a cache of small batches would take
several times its bound."""
LEAST_BYTES = 2 * 1024 * 1024
"""What is kept for readers who are yet to come."""
WINDOW = 8
"""How many times the most that it may hold passes before it becomes smaller."""


class CachedLog(Protocol):
    @property
    def tail(self) -> BatchList: ...

    @property
    def written_end(self) -> int: ...


class TailCache:
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
        """How far back a reader has begun, since the bound was last looked at."""
        self._passed_bytes = 0
        """What was given up since then."""
        self._filling_bytes = size_bytes_max + unwritten_bytes_max // 2
        self._unwritten_bytes_max = size_bytes_max + unwritten_bytes_max
        self._size_bytes = 0
        self._order: deque[tuple[CachedLog, int]] = deque()
        """Whose turn it is to give up a batch, oldest first, and how many in a row."""
        self._held: dict[CachedLog, int] = {}
        """How many turns each log has let pass: what stands still in one log must not make the others' batches stay."""

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def bound_bytes(self) -> int:
        return self._bound_bytes

    @property
    def is_filling(self) -> bool:
        """The disk takes less than arrives. Producers wait from here on, so that the other half of the memory for
        unwritten records is left to what followers fetch."""
        return self._size_bytes > self._filling_bytes

    @property
    def is_overfull(self) -> bool:
        """The memory for unwritten records is used up: nothing more may be appended."""
        return self._size_bytes > self._unwritten_bytes_max

    def add(self, log: CachedLog, base_offset: int, end_offset: int, batch: memoryview) -> None:
        log.tail.append(base_offset, end_offset, batch)
        self._note(log, 1)
        self._size_bytes += len(batch) + ENTRY_BYTES
        if self._size_bytes > self._bound_bytes:
            self._shrink()

    def add_run(self, log: CachedLog, run: BatchRun) -> None:
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
        """A segment write has ended: the log's turns come again."""
        turns = self._held.pop(log, 0)
        if turns:
            self._order.appendleft((log, turns))
        if self._size_bytes > self._bound_bytes:
            self._shrink()

    def read(self, log: CachedLog, offset: int, max_bytes: int, upto: int) -> Slice:
        """From an offset that the log has here."""
        tail = log.tail
        depth_bytes = self._size_bytes * tail.bytes_from(offset) // tail.size_bytes
        if depth_bytes > self._deepest_bytes:
            self._deepest_bytes = depth_bytes
            self._bound_bytes = min(max(self._bound_bytes, 2 * depth_bytes), self._size_bytes_max)
        return tail.read(offset, max_bytes, upto)

    def on_missed(self) -> None:
        """A reader begins at an offset that only the segments have."""
        self._deepest_bytes = self._bound_bytes = self._size_bytes_max

    def forget_below(self, log: CachedLog, offset: int) -> None:
        """What the log has there has changed: it is read from the segments from now on."""
        log_bytes = log.tail.size_bytes + len(log.tail) * ENTRY_BYTES
        count, size_bytes = log.tail.drop_oldest(len(log.tail), offset, log_bytes, ENTRY_BYTES)
        self._size_bytes -= size_bytes + count * ENTRY_BYTES

    def forget(self, log: CachedLog) -> None:
        """The log is closed or deleted; its places in the order fall out by themselves."""
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

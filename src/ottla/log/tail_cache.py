"""The newest batches of all logs in memory, up to a bound, so that caught-up readers never touch the disk.

The oldest batch of the whole broker goes first, and only once its segment has been written: until then this is the
only place it can be read from (SAFETY 29). A batch that a transport still sends stays alive by its own reference.
"""

from __future__ import annotations

from collections import deque
from itertools import repeat
from typing import Protocol

from ottla.log.batches import BatchList
from ottla.records.produce_run import ProduceRun

ENTRY_BYTES = 400
"""What a cached batch costs besides its bytes: objects, list places. Without it, a cache of small batches would take
several times its bound."""


class CachedLog(Protocol):
    @property
    def tail(self) -> BatchList: ...

    @property
    def written_end(self) -> int: ...


class TailCache:
    __slots__ = ("_held", "_order", "_size_bytes", "_size_bytes_max", "_unwritten_bytes_max")

    def __init__(self, size_bytes_max: int, unwritten_bytes_max: int = 1 << 28) -> None:
        self._size_bytes_max = size_bytes_max
        self._unwritten_bytes_max = size_bytes_max + unwritten_bytes_max
        self._size_bytes = 0
        self._order: deque[CachedLog] = deque()
        """One entry a cached batch, oldest first: whose turn it is to give one up."""
        self._held: dict[CachedLog, int] = {}
        """How many turns each log has let pass: what stands still in one log must not make the others' batches stay."""

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def is_overfull(self) -> bool:
        """Far more than the bound is in memory, because the disk does not take it: nothing more may be appended."""
        return self._size_bytes > self._unwritten_bytes_max

    def add(self, log: CachedLog, base_offset: int, end_offset: int, batch: memoryview) -> None:
        log.tail.append(base_offset, end_offset, batch)
        self._order.append(log)
        self._size_bytes += len(batch) + ENTRY_BYTES
        if self._size_bytes > self._size_bytes_max:
            self._shrink()

    def add_run(self, log: CachedLog, run: ProduceRun) -> None:
        log.tail.append_run(run)
        count = len(run)
        self._order.extend(repeat(log, count))
        self._size_bytes += run.size_bytes + count * ENTRY_BYTES
        if self._size_bytes > self._size_bytes_max:
            self._shrink()

    def on_written(self, log: CachedLog) -> None:
        """A segment write has ended: the log's turns come again."""
        turns = self._held.pop(log, 0)
        if turns:
            self._order.extendleft(repeat(log, turns))
        if self._size_bytes > self._size_bytes_max:
            self._shrink()

    def forget(self, log: CachedLog) -> None:
        """The log is closed or deleted; its places in the order fall out by themselves."""
        self._held.pop(log, None)
        self._size_bytes -= len(log.tail) * ENTRY_BYTES
        self._size_bytes -= log.tail.drop_all()

    def _shrink(self) -> None:
        while self._size_bytes > self._size_bytes_max and self._order:
            log = self._order.popleft()
            first_end = log.tail.first_end
            if first_end is None:
                continue
            if first_end > log.written_end:
                self._held[log] = self._held.get(log, 0) + 1
            else:
                self._size_bytes -= log.tail.drop_first() + ENTRY_BYTES

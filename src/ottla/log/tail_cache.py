"""The newest batches of all logs in memory, up to a bound, so that caught-up readers never touch the disk.

The oldest batch of the whole broker goes first, and only once its segment has been written: until then this is the
only place it can be read from (SAFETY 29). A batch that a transport still sends stays alive by its own reference.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from ottla.log.batches import BatchList


class CachedLog(Protocol):
    @property
    def tail(self) -> BatchList: ...

    @property
    def written_end(self) -> int: ...


class TailCache:
    __slots__ = ("_order", "_size_bytes", "_size_bytes_max")

    def __init__(self, size_bytes_max: int) -> None:
        self._size_bytes_max = size_bytes_max
        self._size_bytes = 0
        self._order: deque[CachedLog] = deque()
        """One entry a cached batch, oldest first: whose turn it is to give one up."""

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def add(self, log: CachedLog, base_offset: int, end_offset: int, batch: memoryview) -> None:
        log.tail.append(base_offset, end_offset, batch)
        self._order.append(log)
        self._size_bytes += len(batch)
        if self._size_bytes > self._size_bytes_max:
            self.shrink()

    def shrink(self) -> None:
        """Called when a batch comes in and when a segment write ends."""
        while self._size_bytes > self._size_bytes_max and self._order:
            log = self._order[0]
            first_end = log.tail.first_end
            if first_end is not None:
                if first_end > log.written_end:
                    return
                self._size_bytes -= log.tail.drop_first()
            self._order.popleft()

    def forget(self, log: CachedLog) -> None:
        """The log is closed or deleted; its places in the order fall out by themselves."""
        self._size_bytes -= log.tail.drop_all()

"""Memory for large frames: recycled where the extension is built, else a new bytearray each time.

`pool.allocate(size)` is what `server.frames.ReceiveMemory` wants: writable memory with the buffer protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class AnyBuffer(Protocol):
    """A Buffer of the extension, or a bytearray."""

    def __len__(self) -> int: ...

    def __buffer__(self, flags: int, /) -> memoryview: ...


class AnyBufferPool(Protocol):
    """What the extension's pool and its twin both are."""

    def allocate(self, size: int) -> AnyBuffer: ...

    @property
    def free_bytes(self) -> int: ...

    @property
    def used_bytes(self) -> int: ...

    def trim(self) -> None: ...


class BytearrayPool:
    """The twin: it keeps nothing, so nothing can be used twice."""

    def __init__(self, free_bytes_max: int) -> None:
        self.free_bytes = 0
        self.used_bytes = 0

    def allocate(self, size: int) -> bytearray:
        return bytearray(size)

    def trim(self) -> None:
        return


def _best_pool_type() -> Callable[[int], AnyBufferPool]:
    try:
        from ottla.adapters import _buffers
    except ImportError:
        return BytearrayPool
    return _buffers.BufferPool


BufferPool = _best_pool_type()
"""`BufferPool(free_bytes_max)`: the best pool there is; it keeps at most so much memory for its next use."""

"""Memory for large frames: recycled if the extension is built, otherwise a new bytearray each time.

`pool.allocate(size)` returns what `server.frames.ReceiveMemory` needs: writable memory with the buffer protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class AnyBuffer(Protocol):
    """A Buffer of the extension, or a bytearray."""

    def __len__(self) -> int: ...

    def __buffer__(self, flags: int, /) -> memoryview: ...


class AnyBufferPool(Protocol):
    """The interface of the extension's pool and of its pure Python version."""

    def allocate(self, size: int) -> AnyBuffer:
        """Returns writable memory of `size` bytes with any content. Dropping the last reference frees it."""
        ...

    @property
    def free_bytes(self) -> int:
        """Bytes kept for reuse."""
        ...

    @property
    def used_bytes(self) -> int:
        """Bytes in buffers that are in use."""
        ...

    def trim(self) -> None:
        """Returns the memory kept for reuse to the operating system."""
        ...


class BytearrayPool:
    """The pure Python version: it keeps no memory, so nothing is reused."""

    def __init__(self, free_bytes_max: int) -> None:
        self.free_bytes = 0
        self.used_bytes = 0

    def allocate(self, size: int) -> bytearray:
        return bytearray(size)

    def trim(self) -> None:
        return


def _best_pool_type() -> Callable[[int], AnyBufferPool]:
    try:
        from ottla.broker.adapters import _buffers
    except ImportError:
        return BytearrayPool
    return _buffers.BufferPool


BufferPool = _best_pool_type()
"""`BufferPool(free_bytes_max)` creates the best available pool. It keeps at most `free_bytes_max` for reuse."""

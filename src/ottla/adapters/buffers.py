"""Memory for large frames: recycled where the extension is built, else a new bytearray each time.

`pool.allocate(size)` is what `server.frames.ReceiveMemory` wants: writable memory with the buffer protocol.
"""

from __future__ import annotations

from typing import Protocol

FREE_BYTES_MAX = 64 << 20
"""Enough for 64 requests of 1 MB that are in flight and not yet replaced by others."""


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


def buffer_pool(free_bytes_max: int = FREE_BYTES_MAX) -> AnyBufferPool:
    """The best pool there is; it keeps at most so much memory for its next use."""
    try:
        from ottla.adapters._buffers import BufferPool
    except ImportError:
        return BytearrayPool(free_bytes_max)
    return BufferPool(free_bytes_max)

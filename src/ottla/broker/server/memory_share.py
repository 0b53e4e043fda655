"""The part of the request memory that one connection uses, and its rules for reading while that memory is full."""

from __future__ import annotations

from ottla.broker.server.frames import CARRY_BYTES_MAX, FrameAssembler
from ottla.broker.server.limits import RequestMemory
from ottla.broker.server.port import ConnectionHandler

READ_BYTES_WHEN_FULL = 4 * 1024
"""Bytes that a connection reads at once while the request memory is full: enough to see what is coming."""
READ_ON_BYTES_WHEN_FULL = 60 * 1024
"""The same for a connection that is in the middle of a large frame, which it may read to its end."""
SMALL_FRAME_BYTES_MAX = CARRY_BYTES_MAX
"""Frames up to this size are read even while the request memory is full: heartbeats, fetches, metadata."""
CONTROL_FRAME_BYTES_MAX = 1024 * 1024
"""The same for frames without records, such as a fetch that names thousands of partitions."""
RESERVED_BYTES_MAX = 1024 * 1024
"""Memory reserved at most for a large frame that may be read on: a size field alone never counts for more."""
PRODUCE_KEY = 0


class MemoryShare:
    """Counts the request memory of one connection."""

    __slots__ = ("_assembler", "_counted_bytes", "_handler", "_memory", "held_bytes")

    def __init__(self, memory: RequestMemory, assembler: FrameAssembler, handler: ConnectionHandler) -> None:
        self._memory = memory
        self._assembler = assembler
        self._handler = handler
        self._counted_bytes = 0
        """Memory of complete frames."""
        self.held_bytes = 0
        """Memory of the assembler's incomplete frame."""

    def count(self, byte_count: int) -> None:
        """Takes memory for complete frames, or gives it back if the number is negative."""
        self._counted_bytes += byte_count
        self._memory.take(byte_count)

    def hold(self, held_bytes: int) -> bool:
        """Sets the memory of the incomplete frame. Returns False if it is large, needs more, and there is no more."""
        grown_bytes = held_bytes - self.held_bytes
        self.held_bytes = held_bytes
        self._memory.take(grown_bytes)
        return grown_bytes <= 0 or held_bytes <= SMALL_FRAME_BYTES_MAX or not self._memory.is_exhausted

    def release(self) -> None:
        """Gives everything back."""
        self._memory.take(-self.held_bytes - self._counted_bytes)
        self.held_bytes = self._counted_bytes = 0

    @property
    def read_bytes_when_full(self) -> int:
        """How much is read at once while the memory is full."""
        return READ_ON_BYTES_WHEN_FULL if self.held_bytes > SMALL_FRAME_BYTES_MAX else READ_BYTES_WHEN_FULL

    def may_read_on(self) -> bool:
        """Whether this connection is read while the request memory is full: if it has begun a large frame, if it
        carries replication, or if it holds little and the next frame is small or carries no records."""
        if self.held_bytes > SMALL_FRAME_BYTES_MAX or self._handler.is_of_broker:
            return True
        if self._counted_bytes > SMALL_FRAME_BYTES_MAX:
            return False
        begun = self._assembler.begun
        if begun is None:
            return True
        size, api_key = begun
        return size <= (SMALL_FRAME_BYTES_MAX if api_key == PRODUCE_KEY else CONTROL_FRAME_BYTES_MAX)

    @property
    def wanted_bytes(self) -> int:
        """The memory that the connection takes when it continues after it has waited."""
        begun = self._assembler.begun
        return min(begun[0], RESERVED_BYTES_MAX) if begun is not None else READ_BYTES_WHEN_FULL

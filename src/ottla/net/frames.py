"""Splits a byte stream into frames (a 4-byte size, then that many bytes) without copying large ones.

Small frames pass through one shared buffer and are copied out of it. A frame that does not fit is read directly into
its own buffer, which the frame's view keeps alive.
"""

from __future__ import annotations

import asyncio
from struct import Struct

from ottla.ports import Allocate

_SIZE = Struct(">i")
_SMALL_BYTES = 64 * 1024
FRAME_BYTES_MAX = 512 * 1024 * 1024


class NotKafkaError(Exception):
    """The bytes cannot be replies of a Kafka broker."""


class FrameReader(asyncio.BufferedProtocol):
    """A protocol that calls `frame_received` for each frame and `stream_damaged` if the bytes are not frames."""

    def __init__(self, allocate: Allocate = bytearray) -> None:
        self._allocate = allocate
        self._small = memoryview(bytearray(_SMALL_BYTES))
        self._small_end = 0
        self._large: memoryview | None = None
        self._large_end = 0

    def frame_received(self, frame: memoryview) -> None:
        """Called with each complete frame."""
        raise NotImplementedError

    def stream_damaged(self, reason: str) -> None:
        """Called when the stream cannot be parsed any further."""
        raise NotImplementedError

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large[self._large_end :]
        return self._small[self._small_end :]

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if self._large is None:
                self._small_end += nbytes
                self._take_small_frames()
                return
            self._large_end += nbytes
            if self._large_end == len(self._large):
                frame, self._large = self._large, None
                self.frame_received(frame)
        except (NotKafkaError, IndexError) as damage:
            self.stream_damaged(str(damage))

    def _take_small_frames(self) -> None:
        start, end = 0, self._small_end
        while end - start >= 4:
            (size,) = _SIZE.unpack_from(self._small, start)
            if not 4 <= size <= FRAME_BYTES_MAX:
                raise NotKafkaError(f"invalid frame size of {size} bytes")
            if end - start - 4 >= size:
                frame = memoryview(bytes(self._small[start + 4 : start + 4 + size]))
                start += 4 + size
                self.frame_received(frame)
            elif size + 4 > _SMALL_BYTES:
                self._begin_large(size, start + 4, end)
                return
            else:
                break
        rest = end - start
        if start and rest:
            self._small[:rest] = bytes(self._small[start:end])
        self._small_end = rest

    def _begin_large(self, size: int, start: int, end: int) -> None:
        self._large = memoryview(self._allocate(size))[:size]
        self._large_end = end - start
        self._large[: self._large_end] = self._small[start:end]
        self._small_end = 0

"""The messages of a gRPC stream. Each has a prefix: a flag byte and a length of four bytes.

Messages are split from the stream as bytes arrive. The length of a message is checked before any of it is buffered.
"""

from __future__ import annotations

from struct import Struct

from ottla.net.grpc.status import RpcError, Status

PREFIX = Struct(">BI")
PREFIX_BYTES = PREFIX.size
SMALL_PART_BYTES = 4096


def framed(message: bytes | bytearray) -> bytes:
    """Returns the message with its prefix."""
    return PREFIX.pack(0, len(message)) + message


class MessageSplitter:
    """Splits the bytes of a stream into messages."""

    __slots__ = ("_missing_bytes", "_parts", "_prefix", "_size_bytes_max", "buffered_bytes")

    def __init__(self, size_bytes_max: int) -> None:
        self._size_bytes_max = size_bytes_max
        self._prefix = b""
        """The beginning of an incomplete prefix."""
        self._parts: list[bytes | bytearray] = []
        self._missing_bytes = 0
        """How many bytes of the message in `_parts` have not arrived yet."""
        self.buffered_bytes = 0
        """The size of what has arrived of an incomplete message, with its prefix."""

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the messages that `data` completes. Raises RpcError if one is compressed or too large."""
        found: list[bytes] = []
        if self._missing_bytes:
            part = data[: self._missing_bytes]
            self._hold(part)
            if self._missing_bytes:
                return found
            found.append(b"".join(self._parts))
            self._parts.clear()
            data = data[len(part) :]
        elif self._prefix:
            data = self._prefix + data
        at, end = 0, len(data)
        while end - at >= PREFIX_BYTES:
            start = at + PREFIX_BYTES
            at = start + self._length(data, at)
            if at > end:
                self._prefix, self._missing_bytes, self.buffered_bytes = b"", at - start, PREFIX_BYTES
                self._hold(data[start:])
                return found
            found.append(data[start:at])
        self._prefix = data[at:]
        self.buffered_bytes = len(self._prefix)
        return found

    def clear(self) -> None:
        """Drops the incomplete message."""
        self._prefix, self._missing_bytes, self.buffered_bytes = b"", 0, 0
        self._parts.clear()

    def _hold(self, part: bytes) -> None:
        """Buffers a part of a message. Small parts are joined, as separately they take more memory than counted."""
        self._missing_bytes -= len(part)
        self.buffered_bytes += len(part)
        if len(part) >= SMALL_PART_BYTES:
            self._parts.append(part)
        elif self._parts and isinstance(self._parts[-1], bytearray):
            self._parts[-1] += part
        else:
            self._parts.append(bytearray(part))

    def _length(self, data: bytes | bytearray, at: int = 0) -> int:
        flag, length = PREFIX.unpack_from(data, at)
        if flag:
            raise RpcError(
                Status.UNIMPLEMENTED, "compressed messages are not supported; send with grpc-encoding identity"
            )
        if length > self._size_bytes_max:
            raise RpcError(
                Status.RESOURCE_EXHAUSTED,
                f"a message of {length} bytes exceeds the limit of {self._size_bytes_max} bytes",
            )
        return int(length)

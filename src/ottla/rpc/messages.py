"""Messages on a call's stream: a flag byte, the length in four, the message.

A message is taken apart as it arrives. Its length is checked before anything is kept for it.
"""

from __future__ import annotations

from struct import Struct

from ottla.rpc.status import RpcError, Status

PREFIX = Struct(">BI")
PREFIX_BYTES = PREFIX.size


def framed(message: bytes | bytearray) -> bytes:
    return PREFIX.pack(0, len(message)) + message


class MessageSplitter:
    __slots__ = ("_buffer", "_size_bytes_max")

    def __init__(self, size_bytes_max: int) -> None:
        self._size_bytes_max = size_bytes_max
        self._buffer = bytearray()

    @property
    def buffered_bytes(self) -> int:
        """Of a message that is not whole yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole by now. Raises RpcError."""
        if not self._buffer and len(data) >= PREFIX_BYTES and self._length(data) + PREFIX_BYTES == len(data):
            return [data[PREFIX_BYTES:]]  # what nearly always comes: one frame, one message
        self._buffer += data
        buffer, at, found = self._buffer, 0, []
        while len(buffer) - at >= PREFIX_BYTES:
            end = at + PREFIX_BYTES + self._length(buffer, at)
            if end > len(buffer):
                break
            found.append(bytes(buffer[at + PREFIX_BYTES : end]))
            at = end
        del buffer[:at]
        return found

    def _length(self, data: bytes | bytearray, at: int = 0) -> int:
        flag, length = PREFIX.unpack_from(data, at)
        if flag:
            raise RpcError(Status.UNIMPLEMENTED, "compressed messages are not taken: send with grpc-encoding identity")
        if length > self._size_bytes_max:
            raise RpcError(
                Status.RESOURCE_EXHAUSTED,
                f"a message of {length} bytes is above the {self._size_bytes_max} bytes taken",
            )
        return int(length)

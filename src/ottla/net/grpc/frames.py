"""The frames that a stream of messages consists of, past `h2`: DATA without flags, and WINDOW_UPDATE.

`h2` makes a dozen objects for a frame and runs two state machines. A message of a running stream needs none of it: its
bytes belong to the stream. So these frames are read and written here; all others, and DATA that ends a stream or is
padded, go through `h2`, which keeps everything else.
"""

from __future__ import annotations

from struct import Struct

from ottla.net.grpc.status import RpcError, Status

HEADER_BYTES = 9
PREFACE_BYTES = 24
DATA, WINDOW_UPDATE = 0, 8
_DATA_HEADER = Struct(">BHBBI")
_WINDOW_UPDATE = Struct(">BHBBII")

Part = tuple[int, bytes]
"""A stream's id and its bytes; or 0, and what is for `h2`."""


def data_header(stream_id: int, size_bytes: int) -> bytes:
    return _DATA_HEADER.pack(size_bytes >> 16, size_bytes & 0xFFFF, DATA, 0, stream_id)


def window_update(stream_id: int, increment: int) -> bytes:
    """Stream 0 is the connection."""
    return _WINDOW_UPDATE.pack(0, 4, WINDOW_UPDATE, 0, stream_id, increment)


class FrameSplitter:
    """Splits what a connection receives. The bytes of a DATA frame are passed on as they arrive: a stream does not see
    where its frames end, and nothing has to be copied to make a frame whole."""

    __slots__ = ("_data_left", "_data_stream_id", "_frame_bytes_max", "_preface_left", "_rest")

    def __init__(self, frame_bytes_max: int, *, has_preface: bool) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._preface_left = PREFACE_BYTES if has_preface else 0
        self._rest = b""
        self._data_stream_id = 0
        self._data_left = 0
        """Bytes of the current DATA frame that have not arrived yet."""

    def feed(self, data: bytes) -> list[Part]:
        """In the order in which they came. Raises RpcError for a frame that is too large, as soon as it says so: `h2`
        would wait for the whole of it."""
        parts: list[Part] = []
        if self._preface_left:
            taken, data = data[: self._preface_left], data[self._preface_left :]
            self._preface_left -= len(taken)
            parts.append((0, taken))
        if self._data_left:
            taken = data[: self._data_left]
            if taken:
                self._data_left -= len(taken)
                parts.append((self._data_stream_id, taken))
            if self._data_left:
                return parts
            data = data[len(taken) :]
        elif self._rest:
            data = self._rest + data
        self._rest = self._split(data, parts)
        return parts

    def _split(self, data: bytes, parts: list[Part]) -> bytes:
        """Adds the parts of whole frames, and the beginning of a DATA frame; returns the rest."""
        at, end, others_from = 0, len(data), 0
        while end - at >= HEADER_BYTES:
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            behind = at + HEADER_BYTES + length
            if length > self._frame_bytes_max:
                raise RpcError(Status.RESOURCE_EXHAUSTED, f"a frame of {length} bytes is above {self._frame_bytes_max}")
            is_data = data[at + 3] == DATA and data[at + 4] == 0
            if behind > end and not is_data:
                break
            if is_data:
                if others_from < at:
                    parts.append((0, data[others_from:at]))
                stream_id = int.from_bytes(data[at + 5 : at + HEADER_BYTES]) & 0x7FFFFFFF
                if length == 0 or at + HEADER_BYTES < end:
                    parts.append((stream_id, data[at + HEADER_BYTES : behind]))
                if behind > end:
                    self._data_stream_id, self._data_left = stream_id, behind - end
                    return b""
                others_from = behind
            at = behind
        if others_from < at:
            parts.append((0, data[others_from:at]))
        return data[at:]

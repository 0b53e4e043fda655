"""Fast paths that bypass `h2` for the frames of a running stream: DATA without flags, and WINDOW_UPDATE.

For each frame, `h2` creates a dozen objects and runs two state machines. The messages of a running stream need none of
that: their bytes simply belong to the stream. So this module splits off incoming DATA frames and encodes both kinds of
outgoing frames. All other frames, and DATA frames that end a stream or are padded, go through `h2`, which keeps the
state of everything else.
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
"""The id of a stream and bytes of its messages, or 0 and bytes for `h2`."""


def data_header(stream_id: int, size_bytes: int) -> bytes:
    """Encodes the header of a DATA frame."""
    return _DATA_HEADER.pack(size_bytes >> 16, size_bytes & 0xFFFF, DATA, 0, stream_id)


def window_update(stream_id: int, increment: int) -> bytes:
    """Encodes a WINDOW_UPDATE frame. Stream 0 is the connection."""
    return _WINDOW_UPDATE.pack(0, 4, WINDOW_UPDATE, 0, stream_id, increment)


class FrameSplitter:
    """Splits received bytes into those of streams and those for `h2`.

    The bytes of a DATA frame are passed on as they arrive. Streams do not see where frames end, so no bytes are copied
    to complete a frame.
    """

    __slots__ = ("_data_left", "_data_stream_id", "_frame_bytes_max", "_preface_left", "_rest")

    def __init__(self, frame_bytes_max: int, *, has_preface: bool) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._preface_left = PREFACE_BYTES if has_preface else 0
        self._rest = b""
        self._data_stream_id = 0
        self._data_left = 0
        """Bytes of the current DATA frame that have not arrived yet."""

    def feed(self, data: bytes) -> list[Part]:
        """Returns the parts in order of arrival.

        Raises RpcError for a frame that is too large as soon as its header has arrived; `h2` would wait for all of it.
        """
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
        """Adds complete frames, and the beginning of a DATA frame, to `parts`. Returns the remaining bytes."""
        at, end, others_from = 0, len(data), 0
        while end - at >= HEADER_BYTES:
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            behind = at + HEADER_BYTES + length
            if length > self._frame_bytes_max:
                raise RpcError(
                    Status.RESOURCE_EXHAUSTED, f"a frame of {length} bytes exceeds the limit of {self._frame_bytes_max}"
                )
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

"""One call on its HTTP/2 connection, of either side, and what it does with what arrives."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import h2.connection
import h2.exceptions

from ottla.net.grpc.frames import data_header
from ottla.net.grpc.messages import MessageSplitter, framed
from ottla.net.grpc.status import RpcError

if TYPE_CHECKING:
    from ottla.net.grpc.connection import Http2Connection

STREAM_WINDOW_BYTES = 4 * 1024 * 1024

Headers = list[tuple[str, str]]


class Receiver:
    """What a call does with what arrives. Overridden by whoever wants to know."""

    def on_headers(self, headers: dict[str, str]) -> None: ...

    def on_message(self, message: bytes) -> None: ...

    def on_end(self, trailers: dict[str, str]) -> None:
        """The peer sends nothing more."""

    def on_lost(self, error: RpcError) -> None:
        """The call was cut short: by the peer, or with the connection."""

    def on_drained(self) -> None:
        """All that was sent has left."""


class Stream:
    """One call on its connection."""

    __slots__ = (
        "_connection",
        "_ends",
        "_out",
        "_splitter",
        "_trailers",
        "credit_due_bytes",
        "early_credit_bytes",
        "has_ended",
        "id",
        "is_over",
        "receiver",
        "uncredited_bytes",
        "unsent_bytes",
        "window_bytes",
    )

    def __init__(self, connection: Http2Connection, stream_id: int, receiver: Receiver, message_bytes_max: int) -> None:
        self._connection = connection
        self._splitter = MessageSplitter(message_bytes_max)
        self._out: deque[bytes | memoryview] = deque()
        self._trailers: Headers | None = None
        self._ends = False
        self.id = stream_id
        self.receiver = receiver
        self.unsent_bytes = 0
        self.uncredited_bytes = 0
        """Of what came: the peer's window is smaller by so much."""
        self.window_bytes = STREAM_WINDOW_BYTES
        """What the peer may send yet."""
        self.credit_due_bytes = 0
        """Given, and not told yet: small amounts are told together."""
        self.early_credit_bytes = 0
        """Credited for a message before it was whole, and to be deducted from the next credits."""
        self.has_ended = False
        """The peer sends nothing more."""
        self.is_over = False

    @property
    def peer(self) -> str:
        return self._connection.peer

    # -- sending ----------------------------------------------------------------------------------------------

    def send_headers(self, headers: Headers) -> None:
        self._connection.send_headers(self, headers)

    def send(self, message: bytes | bytearray, *, now: bool = False) -> None:
        """`now`: the caller has gathered what there is, and another turn of the loop would gain nothing."""
        if self.is_over:
            return
        data = framed(message)
        self._out.append(data)
        self.unsent_bytes += len(data)
        if now:
            self._connection.pump_now(self)
        else:
            self._connection.pump_soon(self)

    def end(self, trailers: Headers | None = None) -> None:
        """Nothing more comes from here, once all before has left."""
        if not self.is_over:
            self._ends, self._trailers = True, trailers
            self._connection.pump_soon(self)

    def reset(self) -> None:
        """Cuts the call short; the peer hears of it."""
        if not self.is_over:
            self._connection.reset(self)

    def pump(self, http2: h2.connection.H2Connection) -> None:
        """Gives as much as the peer takes now."""
        had_some = bool(self._out)
        while self._out:
            stream = http2.streams.get(self.id)
            if stream is None:
                raise h2.exceptions.StreamClosedError(self.id)
            room = min(
                http2.outbound_flow_control_window, stream.outbound_flow_control_window, http2.max_outbound_frame_size
            )
            if room <= 0:
                return
            data = self._take(room)
            http2.outbound_flow_control_window -= len(data)
            stream.outbound_flow_control_window -= len(data)
            self._connection.write(data_header(self.id, len(data)), data)
        if self._ends:
            self._ends = False
            if self._trailers is not None:
                http2.send_headers(self.id, self._trailers, end_stream=True)
                self._connection.on_call_over(self)
            else:
                http2.end_stream(self.id)
        elif had_some:
            self.receiver.on_drained()

    def _take(self, room: int) -> bytes | memoryview:
        """Several small messages go into one frame. The frames of a large one are views of it, not copies."""
        out, size = self._out, 0
        taken: list[bytes | memoryview] = []
        while out and size + len(out[0]) <= room:
            size += len(out[0])
            taken.append(out.popleft())
        if size < room and out and not taken:
            view = memoryview(out[0])
            taken, out[0] = [view[:room]], view[room:]
            size = room
        self.unsent_bytes -= size
        return taken[0] if len(taken) == 1 else b"".join(taken)

    # -- receiving --------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> list[bytes]:
        return self._splitter.feed(data)

    @property
    def buffered_bytes(self) -> int:
        return self._splitter.buffered_bytes

    def credit(self, size_bytes: int) -> None:
        """So much of what came is done with: the peer may send as much again."""
        self._connection.credit(self, size_bytes)

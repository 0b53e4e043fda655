"""One call on an HTTP/2 connection, of a client or a server, and the receiver of its messages."""

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
    """The callbacks of a call. Subclasses override those that they need."""

    def on_headers(self, headers: dict[str, str]) -> None: ...

    def on_message(self, message: bytes) -> None: ...

    def on_end(self, trailers: dict[str, str]) -> None:
        """Called when the peer has sent its last message."""

    def on_lost(self, error: RpcError) -> None:
        """Called when the peer cancels the call, a message is unacceptable, or the connection ends."""

    def on_drained(self) -> None:
        """Called when no unsent bytes are left."""


class Stream:
    """One call: an HTTP/2 stream that carries messages in both directions."""

    __slots__ = (
        "_connection",
        "_ends",
        "_out",
        "_splitter",
        "_trailers",
        "credit_due_bytes",
        "early_credit_bytes",
        "has_ended",
        "has_headers",
        "id",
        "is_over",
        "is_refused",
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
        """Received bytes that are not credited yet. The peer's window is smaller by as much."""
        self.window_bytes = STREAM_WINDOW_BYTES
        """How many bytes the peer may still send."""
        self.credit_due_bytes = 0
        """Credit that the peer has not been sent yet. Small credits are combined into one WINDOW_UPDATE."""
        self.early_credit_bytes = 0
        """Credit given for parts of an incomplete message. It is deducted from the next credits."""
        self.has_ended = False
        """Whether the peer has sent its last message."""
        self.has_headers = False
        """Whether the headers of a server's response were sent."""
        self.is_over = False
        self.is_refused = False
        """Whether a message could not be accepted. The rest of what the peer sends is discarded."""

    @property
    def peer(self) -> str:
        """The address of the other side, as `host:port`."""
        return self._connection.peer

    # -- sending ----------------------------------------------------------------------------------------------

    def send_headers(self, headers: Headers) -> None:
        """Sends headers with the next flush; a server sends them before its first message."""
        self._connection.send_headers(self, headers)

    def send(self, message: bytes | bytearray, *, now: bool = False) -> None:
        """Queues a message.

        With `now` it is written at once: the caller has gathered all messages that there are, so waiting for the next
        iteration of the event loop would gain nothing.
        """
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
        """Ends this side of the call after all queued messages are sent. A server passes the trailers."""
        if not self.is_over:
            self._ends, self._trailers = True, trailers
            self._connection.pump_soon(self)

    def reset(self) -> None:
        """Cancels the call and notifies the peer."""
        if not self.is_over:
            self._connection.reset(self)

    def pump(self, http2: h2.connection.H2Connection) -> None:
        """Sends as much as the peer's window allows."""
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
        """Takes the content of one frame: several small messages, or a view (not a copy) of a part of a large one."""
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
        """Returns the messages that `data` completes. Raises RpcError."""
        return self._splitter.feed(data)

    def refuse(self) -> None:
        """Drops the incomplete message and discards everything that follows."""
        self.is_refused = True
        self._splitter.clear()

    @property
    def buffered_bytes(self) -> int:
        """The buffered part of an incomplete message."""
        return self._splitter.buffered_bytes

    def credit(self, size_bytes: int) -> None:
        """Reports that received bytes have been processed, so that the peer may send as many again."""
        self._connection.credit(self, size_bytes)

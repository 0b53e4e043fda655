"""One call on an HTTP/2 connection, of a client or a server, and the receiver of its messages."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import h2.connection
import h2.exceptions

from ottla.net.grpc.frames import data_header
from ottla.net.grpc.messages import MessageSplitter, framed
from ottla.net.grpc.output import Output
from ottla.net.grpc.receive_windows import StreamWindow
from ottla.net.grpc.status import RpcError, Status

Headers = list[tuple[str, str]]


class Receiver:
    """The callbacks of a call. Subclasses override those that they need."""

    def on_headers(self, headers: dict[str, str]) -> None:
        """Called when the peer's headers have arrived."""

    def on_message(self, message: bytes) -> None:
        """Called for each message, in order."""

    def on_end(self, trailers: dict[str, str]) -> None:
        """Called when the peer has sent its last message."""

    def on_lost(self, error: RpcError) -> None:
        """Called when the peer cancels the call, a message is unacceptable, or the connection ends."""

    def on_drained(self) -> None:
        """Called when no unsent bytes are left."""


class StreamOwner(Protocol):
    """The connection of a stream."""

    @property
    def peer(self) -> str:
        """The peer's address."""
        ...

    def send_headers(self, stream: Stream, headers: Headers) -> None:
        """Sends the headers of a stream with the next flush."""
        ...

    def reset(self, stream: Stream) -> None:
        """Cancels a call with RST_STREAM."""
        ...

    def cut(self, stream: Stream, error: RpcError) -> None:
        """Ends a call that the peer has reset or that can no longer be served."""
        ...

    def on_call_over(self, stream: Stream) -> None:
        """Called when a server has sent its trailers. Whatever the client still sends is discarded."""
        ...


class Stream:
    """One call: an HTTP/2 stream that carries messages in both directions."""

    __slots__ = (
        "_ends",
        "_out",
        "_output",
        "_owner",
        "_splitter",
        "_trailers",
        "has_ended",
        "has_headers",
        "id",
        "is_over",
        "is_refused",
        "receiver",
        "unsent_bytes",
        "window",
    )

    def __init__(
        self,
        owner: StreamOwner,
        output: Output,
        window: StreamWindow,
        stream_id: int,
        receiver: Receiver,
        message_bytes_max: int,
    ) -> None:
        self._owner = owner
        self._output = output
        self._splitter = MessageSplitter(message_bytes_max)
        self._out: deque[bytes | memoryview] = deque()
        self._trailers: Headers | None = None
        self._ends = False
        self.id = stream_id
        self.receiver = receiver
        self.unsent_bytes = 0
        self.window = window
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
        return self._owner.peer

    # -- sending ----------------------------------------------------------------------------------------------

    def send_headers(self, headers: Headers) -> None:
        """Sends headers with the next flush; a server sends them before its first message."""
        self._owner.send_headers(self, headers)

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
            self._output.pump_now(self)
        else:
            self._output.pump_soon(self)

    def end(self, trailers: Headers | None = None) -> None:
        """Ends this side of the call after all queued messages are sent. A server passes the trailers."""
        if not self.is_over:
            self._ends, self._trailers = True, trailers
            self._output.pump_soon(self)

    def reset(self) -> None:
        """Cancels the call and notifies the peer."""
        if not self.is_over:
            self._owner.reset(self)

    def pump(self) -> None:
        """Sends as much as the peer's window allows."""
        try:
            self._pump(self._output.http2)
        except h2.exceptions.ProtocolError as error:  # the stream was reset in the meantime
            self._owner.cut(self, RpcError(Status.CANCELLED, str(error)))

    def _pump(self, http2: h2.connection.H2Connection) -> None:
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
            self._output.write(data_header(self.id, len(data)), data)
        if self._ends:
            self._ends = False
            if self._trailers is not None:
                http2.send_headers(self.id, self._trailers, end_stream=True)
                self._owner.on_call_over(self)
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

    def end_receiving(self, trailers: dict[str, str]) -> None:
        """Reports the end of the peer's messages to the receiver, once."""
        if not self.has_ended:
            self.has_ended = True
            self.receiver.on_end(trailers)

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
        self.window.credit(size_bytes)

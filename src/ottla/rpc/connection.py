"""One HTTP/2 connection, of either side: its calls, and the flow control of both directions.

`h2` keeps the protocol; here its events become calls of methods, and what it has to send is written once for all that
happened in one turn of the loop.

Receiving: a stream gets credit for what it has taken in (`Stream.credit`), not before. So a receiver that holds bytes
back stops its sender, and no other. Sending: what the peer's window does not take yet waits in the stream, which says
how much that is (`unsent_bytes`): whoever produces it looks there, and is told when it is gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from ottla.rpc.messages import MessageSplitter, framed
from ottla.rpc.status import RpcError, Status

STREAM_WINDOW_BYTES = 4 * 1024 * 1024
CONNECTION_WINDOW_BYTES = 64 * 1024 * 1024
CREDIT_BYTES_MIN = 64 * 1024
STREAMS_MAX = 256
FRAME_BYTES_MAX = 256 * 1024
HEADER_LIST_BYTES_MAX = 16 * 1024
MESSAGE_BYTES_MAX = 16 * 1024 * 1024

PING = b"ottla-rp"

Headers = list[tuple[str, str]]


class PingTimes(NamedTuple):
    """A peer that vanished without a word would be waited for, or be served, for ever."""

    every_s: float
    patience_s: float


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
        "has_ended",
        "id",
        "is_over",
        "receiver",
        "uncredited_bytes",
        "unsent_bytes",
    )

    def __init__(self, connection: Http2Connection, stream_id: int, receiver: Receiver, message_bytes_max: int) -> None:
        self._connection = connection
        self._splitter = MessageSplitter(message_bytes_max)
        self._out: deque[bytes] = deque()
        self._trailers: Headers | None = None
        self._ends = False
        self.id = stream_id
        self.receiver = receiver
        self.unsent_bytes = 0
        self.uncredited_bytes = 0
        """Of what came: the peer's window is smaller by so much."""
        self.credit_due_bytes = 0
        """Given, and not told yet: small amounts are told together."""
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
            room = min(http2.local_flow_control_window(self.id), http2.max_outbound_frame_size)
            if room <= 0:
                return
            http2.send_data(self.id, self._take(room))
        if self._ends:
            self._ends = False
            if self._trailers is not None:
                http2.send_headers(self.id, self._trailers, end_stream=True)
                self._connection.on_call_over(self)
            else:
                http2.end_stream(self.id)
        elif had_some:
            self.receiver.on_drained()

    def _take(self, room: int) -> bytes:
        """Several small messages go into one frame."""
        out, taken, size = self._out, [], 0
        while out and size + len(out[0]) <= room:
            size += len(out[0])
            taken.append(out.popleft())
        if size < room and out and not taken:
            taken, out[0] = [out[0][:room]], out[0][room:]
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


class Http2Connection(asyncio.Protocol):
    """What both sides share."""

    def __init__(self, *, is_client: bool, ping_times: PingTimes, message_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        config = h2.config.H2Configuration(client_side=is_client, header_encoding="utf-8")
        self.http2 = h2.connection.H2Connection(config)
        self.http2.local_settings = h2.settings.Settings(
            client=is_client,
            initial_values={
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
                h2.settings.SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES_MAX,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: HEADER_LIST_BYTES_MAX,
                **({h2.settings.SettingCodes.ENABLE_PUSH: 0} if is_client else {}),
            },
        )
        self.http2.max_inbound_frame_size = FRAME_BYTES_MAX
        self._message_bytes_max = message_bytes_max
        self.streams: dict[int, Stream] = {}
        self.peer = ""
        self.lost: RpcError | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._to_pump: dict[int, Stream] = {}
        self._is_flushing = False
        self._is_paused = False
        self._ping_times = ping_times
        self._timer: asyncio.TimerHandle | None = None

    # -- the transport tells ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) >= 2 else str(name)
        self._watch()
        self.http2.initiate_connection()
        self.http2.increment_flow_control_window(CONNECTION_WINDOW_BYTES)
        self.flush()

    def data_received(self, data: bytes) -> None:
        try:
            events = self.http2.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            self._fail(RpcError(Status.INTERNAL, f"the peer broke HTTP/2: {error}"))
            return
        for event in events:
            handler = _HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event)
        self.flush()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._pump_all()

    def connection_lost(self, error: Exception | None) -> None:
        why = f": {error}" if error is not None else ""
        self._let_go(RpcError(Status.UNAVAILABLE, f"the connection to {self.peer} ended{why}"))

    # -- streams ----------------------------------------------------------------------------------------------

    def add_stream(self, stream_id: int, receiver: Receiver) -> Stream:
        stream = self.streams[stream_id] = Stream(self, stream_id, receiver, self._message_bytes_max)
        return stream

    def send_headers(self, stream: Stream, headers: Headers) -> None:
        if self.lost is None:
            try:
                self.http2.send_headers(stream.id, headers)
            except h2.exceptions.ProtocolError as error:  # it was reset meanwhile
                self._cut(stream, RpcError(Status.CANCELLED, str(error)))
            self._flush_soon()

    def pump_soon(self, stream: Stream) -> None:
        self._to_pump[stream.id] = stream
        self._flush_soon()

    def pump_now(self, stream: Stream) -> None:
        self._to_pump[stream.id] = stream
        self.flush()

    def credit(self, stream: Stream, size_bytes: int) -> None:
        if size_bytes <= 0:
            return
        size_bytes = min(size_bytes, stream.uncredited_bytes)
        stream.uncredited_bytes -= size_bytes
        stream.credit_due_bytes += size_bytes
        if self.lost is None and stream.credit_due_bytes >= CREDIT_BYTES_MIN:
            due, stream.credit_due_bytes = stream.credit_due_bytes, 0
            try:
                self.http2.acknowledge_received_data(due, stream.id)
            except h2.exceptions.StreamClosedError:
                return  # the connection's window has it all the same
            self._flush_soon()

    def _give_back(self, stream: Stream) -> None:
        """What a call held of the connection's window, when it is over."""
        held, stream.uncredited_bytes, stream.credit_due_bytes = stream.uncredited_bytes + stream.credit_due_bytes, 0, 0
        if held and self.lost is None:
            try:
                self.http2.acknowledge_received_data(held, stream.id)
            except h2.exceptions.ProtocolError:
                self._flush_soon()  # the stream is closed; the connection has it back

    def reset(self, stream: Stream) -> None:
        if self.lost is None and not stream.is_over:
            self._give_back(stream)
        stream.is_over = True
        self.streams.pop(stream.id, None)
        self._to_pump.pop(stream.id, None)
        if self.lost is None:
            try:
                self.http2.reset_stream(stream.id, error_code=8)  # CANCEL
            except h2.exceptions.ProtocolError:
                return  # it ended by itself
            self._flush_soon()

    def close(self) -> None:
        if self.lost is None:
            self.http2.close_connection()
            self.flush()
        self._let_go(RpcError(Status.UNAVAILABLE, "the connection was closed"))

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._let_go(RpcError(Status.UNAVAILABLE, "the connection was closed"))

    # -- is anybody there -------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._timer = self._loop.call_later(self._ping_times.every_s, self._send_ping)

    def _send_ping(self) -> None:
        if self.lost is None:
            self._timer = self._loop.call_later(self._ping_times.patience_s, self.abort)
            self.http2.ping(PING)
            self.flush()

    def _on_ping_answered(self, event: h2.events.PingAckReceived) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.lost is None:
            self._watch()

    # -- writing ----------------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._is_flushing = False
        self.flush()

    def flush(self) -> None:
        if self.lost is not None or self._transport is None:
            return
        if self._to_pump and not self._is_paused:
            waiting, self._to_pump = self._to_pump, {}
            for stream in waiting.values():
                self._pump(stream)
        data = self.http2.data_to_send()
        if data:
            self._transport.write(data)

    def _pump(self, stream: Stream) -> None:
        try:
            stream.pump(self.http2)
        except h2.exceptions.ProtocolError as error:  # it was reset meanwhile
            self._cut(stream, RpcError(Status.CANCELLED, str(error)))

    def _pump_all(self) -> None:
        self._to_pump = dict(self.streams)
        self.flush()

    # -- the end ----------------------------------------------------------------------------------------------

    def _fail(self, error: RpcError) -> None:
        if self._transport is not None:
            data = self.http2.data_to_send()  # says why
            if data:
                self._transport.write(data)
        self._let_go(error)

    def _let_go(self, error: RpcError) -> None:
        if self.lost is None:
            self.lost = error
            if self._timer is not None:
                self._timer.cancel()
            if self._transport is not None:
                self._transport.close()
            streams, self.streams = self.streams, {}
            for stream in streams.values():
                self._cut(stream, error)
            self.on_lost(error)

    def on_lost(self, error: RpcError) -> None:
        """For whoever keeps connections."""

    def _cut(self, stream: Stream, error: RpcError) -> None:
        self.streams.pop(stream.id, None)
        self._give_back(stream)
        if not stream.is_over:
            self.on_buffered(-stream.buffered_bytes)
            stream.is_over = True
            stream.receiver.on_lost(error)

    # -- h2 tells ---------------------------------------------------------------------------------------------

    def on_request(self, event: h2.events.RequestReceived) -> None:
        """For a server."""

    def _on_response(self, event: h2.events.ResponseReceived) -> None:
        stream = self.streams.get(_id(event))
        if stream is not None:
            stream.receiver.on_headers(_dict(event.headers))

    def _on_trailers(self, event: h2.events.TrailersReceived) -> None:
        stream = self.streams.get(_id(event))
        if stream is not None:
            self._end(stream, _dict(event.headers))

    def _on_data(self, event: h2.events.DataReceived) -> None:
        stream = self.streams.get(_id(event))
        size = event.flow_controlled_length or 0
        if stream is None:
            self.http2.acknowledge_received_data(size, _id(event))  # a call that is over here
            return
        data, before = event.data or b"", stream.buffered_bytes
        try:
            messages = stream.feed(data)
            self.on_buffered(stream.buffered_bytes - before)
        except RpcError as error:
            self.on_bad_message(stream, error)
            return
        # Whoever holds a message back holds its size back, as far as it came in this frame: what came before was
        # credited at once, else a message above the window could never come.
        stream.uncredited_bytes += size
        self.credit(stream, size - sum(map(len, messages)))
        for message in messages:
            stream.receiver.on_message(message)

    def on_buffered(self, change_bytes: int) -> None:
        """Parts of messages take so much more memory. Raises RpcError if that is too much."""

    def on_bad_message(self, stream: Stream, error: RpcError) -> None:
        self.reset(stream)
        stream.receiver.on_lost(error)

    def _on_stream_ended(self, event: h2.events.StreamEnded) -> None:
        stream = self.streams.get(_id(event))
        if stream is not None:
            self._end(stream, {})

    def _end(self, stream: Stream, trailers: dict[str, str]) -> None:
        if not stream.has_ended:
            stream.has_ended = True
            stream.receiver.on_end(trailers)

    def on_call_over(self, stream: Stream) -> None:
        """A server has sent its last word: whatever the client still sends is for nobody."""
        stream.is_over = True
        self.on_buffered(-stream.buffered_bytes)
        self.streams.pop(stream.id, None)
        self._give_back(stream)
        if not stream.has_ended:
            self.http2.reset_stream(stream.id, error_code=0)

    def _on_reset(self, event: h2.events.StreamReset) -> None:
        stream = self.streams.get(_id(event))
        if stream is not None:
            self._cut(stream, RpcError(Status.CANCELLED, f"the call was cut short (HTTP/2 code {event.error_code})"))

    def _on_window(self, event: h2.events.WindowUpdated) -> None:
        if _id(event):
            stream = self.streams.get(_id(event))
            if stream is not None:
                self._to_pump[stream.id] = stream
        else:
            self._to_pump = dict(self.streams)

    def _on_settings(self, event: h2.events.RemoteSettingsChanged) -> None:
        self._to_pump = dict(self.streams)

    def _on_terminated(self, event: h2.events.ConnectionTerminated) -> None:
        self._let_go(RpcError(Status.UNAVAILABLE, f"{self.peer} ended the connection"))


def _id(event: Any) -> int:
    return int(event.stream_id or 0)


def _dict(headers: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in headers or ()}


_HANDLERS: dict[type, Callable[[Http2Connection, Any], None]] = {
    h2.events.RequestReceived: lambda connection, event: connection.on_request(event),
    h2.events.ResponseReceived: Http2Connection._on_response,
    h2.events.TrailersReceived: Http2Connection._on_trailers,
    h2.events.DataReceived: Http2Connection._on_data,
    h2.events.StreamEnded: Http2Connection._on_stream_ended,
    h2.events.StreamReset: Http2Connection._on_reset,
    h2.events.WindowUpdated: Http2Connection._on_window,
    h2.events.RemoteSettingsChanged: Http2Connection._on_settings,
    h2.events.PingAckReceived: Http2Connection._on_ping_answered,
    h2.events.ConnectionTerminated: Http2Connection._on_terminated,
}

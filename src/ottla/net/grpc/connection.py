"""One HTTP/2 connection of a client or a server: its calls, and flow control in both directions.

`h2` implements the protocol. This module turns its events into method calls and writes its output once per iteration of
the event loop. The DATA frames of running streams bypass `h2` (see `frames`): `h2` keeps the send windows, and this
module keeps the receive windows.

Receiving: a message is credited to the peer's window only when its receiver has processed it (`Stream.credit`). So a
receiver that holds messages back stops its own sender and no other. Sending: bytes that do not fit into the peer's
window wait in the stream. A producer checks how many there are (`unsent_bytes`), and `Receiver.on_drained` is called
when all of them are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from ottla.net.grpc.frames import FrameSplitter, window_update
from ottla.net.grpc.status import RpcError, Status
from ottla.net.grpc.stream import STREAM_WINDOW_BYTES, Headers, Receiver, Stream

CONNECTION_WINDOW_BYTES = 64 * 1024 * 1024
DEFAULT_WINDOW_BYTES = 65535
"""The flow-control window of a new connection, before any WINDOW_UPDATE."""
CREDIT_BYTES_MIN = 64 * 1024
STREAMS_MAX = 256
FRAME_BYTES_MAX = 256 * 1024
HEADER_LIST_BYTES_MAX = 16 * 1024
MESSAGE_BYTES_MAX = 16 * 1024 * 1024

PING = b"ottla-rp"


class PingTimes(NamedTuple):
    """The interval between pings and the timeout of a reply. They detect a peer that vanished without closing."""

    every_s: float
    patience_s: float


class Http2Connection(asyncio.Protocol):
    """The part of a connection that clients and servers share."""

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
        self._frames = FrameSplitter(FRAME_BYTES_MAX, has_preface=not is_client)
        self._window_bytes = CONNECTION_WINDOW_BYTES + DEFAULT_WINDOW_BYTES
        self._pieces: list[bytes | memoryview] = []
        """Output to write, in this order, before the pending output of `h2`."""
        self._to_pump: dict[int, Stream] = {}
        self._is_flushing = False
        self._is_paused = False
        self._ping_times = ping_times
        self._timer: asyncio.TimerHandle | None = None

    # -- callbacks of the transport ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not subclass asyncio.Transport
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) >= 2 else str(name)
        self._watch()
        self.http2.initiate_connection()
        self.http2.increment_flow_control_window(CONNECTION_WINDOW_BYTES)
        self.flush()

    def data_received(self, data: bytes) -> None:
        try:
            parts = self._frames.feed(data)
        except RpcError as error:
            self._fail(error)
            return
        for stream_id, part in parts:
            if stream_id:
                self._on_plain_data(stream_id, part)
            else:
                self._on_frames(part)
        self.flush()

    def _on_frames(self, data: bytes) -> None:
        if self.lost is not None:
            return
        try:
            events = self.http2.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            self._fail(RpcError(Status.INTERNAL, f"the peer violated the HTTP/2 protocol: {error}"))
            return
        for event in events:
            handler = _HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event)

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
        """Registers a new call."""
        stream = self.streams[stream_id] = Stream(self, stream_id, receiver, self._message_bytes_max)
        return stream

    def send_headers(self, stream: Stream, headers: Headers) -> None:
        if self.lost is None:
            try:
                self.http2.send_headers(stream.id, headers)
            except h2.exceptions.ProtocolError as error:  # the stream was reset in the meantime
                self._cut(stream, RpcError(Status.CANCELLED, str(error)))
            self._flush_soon()

    def pump_soon(self, stream: Stream) -> None:
        """Schedules the stream's pending output for the next iteration of the event loop."""
        self._to_pump[stream.id] = stream
        self._flush_soon()

    def pump_now(self, stream: Stream) -> None:
        """Sends the stream's pending output at once, as far as the peer's window allows."""
        self._to_pump[stream.id] = stream
        self.flush()

    def credit(self, stream: Stream, size_bytes: int) -> None:
        """Credits processed bytes to the peer's window. Bytes that were credited early are not credited again."""
        early = min(size_bytes, stream.early_credit_bytes)
        stream.early_credit_bytes -= early
        size_bytes = min(size_bytes - early, stream.uncredited_bytes)
        stream.uncredited_bytes -= size_bytes
        stream.credit_due_bytes += size_bytes
        if self.lost is None and stream.credit_due_bytes >= CREDIT_BYTES_MIN:
            due, stream.credit_due_bytes = stream.credit_due_bytes, 0
            stream.window_bytes += due
            self._widen(due)
            self.write(window_update(stream.id, due))
            self._flush_soon()

    def _widen(self, size_bytes: int) -> None:
        self._window_bytes += size_bytes
        self.write(window_update(0, size_bytes))

    def _give_back(self, stream: Stream) -> None:
        """Returns to the connection's window what a finished call held of it."""
        held, stream.uncredited_bytes, stream.credit_due_bytes = stream.uncredited_bytes + stream.credit_due_bytes, 0, 0
        if held and self.lost is None:
            self._widen(held)
            self._flush_soon()

    def reset(self, stream: Stream) -> None:
        """Cancels a call with RST_STREAM."""
        if self.lost is None and not stream.is_over:
            self._give_back(stream)
        if not stream.is_over:
            self.on_buffered(-stream.buffered_bytes)
        stream.is_over = True
        self.streams.pop(stream.id, None)
        self._to_pump.pop(stream.id, None)
        if self.lost is None:
            try:
                self.http2.reset_stream(stream.id, error_code=8)  # CANCEL
            except h2.exceptions.ProtocolError:
                return  # the stream has already ended
            self._flush_soon()

    def close(self) -> None:
        """Sends GOAWAY and closes the connection. Running calls fail."""
        if self.lost is None:
            self.http2.close_connection()
            self.flush()
        self._let_go(RpcError(Status.UNAVAILABLE, "the connection was closed"))

    def abort(self) -> None:
        """Closes the connection without sending anything. Running calls fail."""
        if self._transport is not None:
            self._transport.abort()
        self._let_go(RpcError(Status.UNAVAILABLE, "the connection was closed"))

    # -- pings ------------------------------------------------------------------------------------------------

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
        """Writes all pending output to the transport."""
        if self.lost is not None or self._transport is None:
            return
        if self._to_pump and not self._is_paused:
            waiting, self._to_pump = self._to_pump, {}
            for stream in waiting.values():
                self._pump(stream)
        self.write()
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            self._transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def write(self, *frames: bytes | memoryview) -> None:
        """Queues frames after the pending output of `h2`."""
        before = self.http2.data_to_send()
        if before:
            self._pieces.append(before)
        self._pieces += frames

    def _pump(self, stream: Stream) -> None:
        try:
            stream.pump(self.http2)
        except h2.exceptions.ProtocolError as error:  # the stream was reset in the meantime
            self._cut(stream, RpcError(Status.CANCELLED, str(error)))

    def _pump_all(self) -> None:
        self._to_pump = dict(self.streams)
        self.flush()

    # -- closing ----------------------------------------------------------------------------------------------

    def _fail(self, error: RpcError) -> None:
        self._to_pump = {}
        self.flush()  # sends the GOAWAY of `h2`, if there is one
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
        """Called when the connection has ended. A server overrides it."""

    def _cut(self, stream: Stream, error: RpcError) -> None:
        self.streams.pop(stream.id, None)
        self._give_back(stream)
        if not stream.is_over:
            self.on_buffered(-stream.buffered_bytes)
            stream.is_over = True
            stream.receiver.on_lost(error)

    # -- events of h2 -----------------------------------------------------------------------------------------

    def on_request(self, event: h2.events.RequestReceived) -> None:
        """Called when a client begins a call. A server overrides it."""

    def _on_response(self, event: h2.events.ResponseReceived) -> None:
        stream = self.streams.get(_id(event))
        if stream is not None:
            stream.receiver.on_headers(_dict(event.headers))

    def _on_trailers(self, event: h2.events.TrailersReceived) -> None:
        stream = self.streams.get(_id(event))
        if stream is not None:
            self._end(stream, _dict(event.headers))

    def _on_data(self, event: h2.events.DataReceived) -> None:
        """Handles a DATA frame that ends its stream or is padded. `h2` has counted it, so `h2` credits it too."""
        self.http2.acknowledge_received_data(event.flow_controlled_length or 0, _id(event))
        stream = self.streams.get(_id(event))
        if stream is not None and not stream.is_refused:
            self._take(stream, event.data or b"", 0)

    def _on_plain_data(self, stream_id: int, data: bytes) -> None:
        if self.lost is not None:
            return
        stream, size = self.streams.get(stream_id), len(data)
        self._window_bytes -= size
        if stream is None or stream.has_ended or stream.is_refused:
            if size:
                self._widen(size)  # nobody on this side wants it any more
            return
        stream.window_bytes -= size
        if self._window_bytes < 0 or stream.window_bytes < 0:
            self._fail(RpcError(Status.INTERNAL, "the peer sent more than the window allows"))
            return
        self._take(stream, data, size)

    def _take(self, stream: Stream, data: bytes, size: int) -> None:
        counted_bytes = stream.buffered_bytes
        stream.uncredited_bytes += size
        try:
            messages = stream.feed(data)
            change_bytes, counted_bytes = stream.buffered_bytes - counted_bytes, stream.buffered_bytes
            self.on_buffered(change_bytes)
        except RpcError as error:
            stream.refuse()
            self.on_buffered(-counted_bytes)
            self.on_bad_message(stream, error)
            return
        # A receiver that holds a message back also holds back its credit. Parts of a message are credited on arrival:
        # otherwise a message larger than the window could never be completed. Later credits are reduced by as much.
        surplus = size - sum(map(len, messages))
        if surplus >= 0:
            self.credit(stream, surplus)
        else:
            stream.early_credit_bytes -= surplus
        for message in messages:
            stream.receiver.on_message(message)

    def on_buffered(self, change_bytes: int) -> None:
        """Called when the size of all incomplete messages changes. Raises RpcError if they take too much memory."""

    def on_bad_message(self, stream: Stream, error: RpcError) -> None:
        """Called when a message cannot be accepted. A server overrides it to send a status."""
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
        """Called when a server has sent its trailers. Whatever the client still sends is discarded."""
        stream.is_over = True
        self.on_buffered(-stream.buffered_bytes)
        self.streams.pop(stream.id, None)
        self._give_back(stream)
        if not stream.has_ended:
            self.http2.reset_stream(stream.id, error_code=0)

    def _on_reset(self, event: h2.events.StreamReset) -> None:
        stream = self.streams.get(_id(event))
        if stream is not None:
            self._cut(stream, RpcError(Status.CANCELLED, f"the call was reset (HTTP/2 error code {event.error_code})"))

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
        self._let_go(RpcError(Status.UNAVAILABLE, f"{self.peer} closed the connection"))


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

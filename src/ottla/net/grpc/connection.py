"""One HTTP/2 connection of a client or a server: its calls, and flow control in both directions.

`h2` implements the protocol. This module turns its events into method calls. The DATA frames of running streams bypass
`h2` (see `frames`): `h2` keeps the send windows, and `receive_windows` keeps the receive windows.

Receiving: a message is credited to the peer's window only when its receiver has processed it (`Stream.credit`).
Sending: bytes that do not fit into the peer's window wait in the stream. A producer checks how many there are
(`unsent_bytes`), and `Receiver.on_drained` is called when all of them are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from ottla.net.grpc.frames import FrameSplitter
from ottla.net.grpc.output import Output
from ottla.net.grpc.pings import Pings, PingTimes
from ottla.net.grpc.receive_windows import CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES, ConnectionWindow, StreamWindow
from ottla.net.grpc.status import RpcError, Status
from ottla.net.grpc.stream import Headers, Receiver, Stream

STREAMS_MAX = 256
FRAME_BYTES_MAX = 256 * 1024
HEADER_LIST_BYTES_MAX = 16 * 1024
MESSAGE_BYTES_MAX = 16 * 1024 * 1024


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
        self.output = Output(self.http2)
        self._frames = FrameSplitter(FRAME_BYTES_MAX, has_preface=not is_client)
        self._window = ConnectionWindow(self.output)
        self._pings = Pings(ping_times, self.output, self.abort)

    # -- callbacks of the transport ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.output.open(cast(asyncio.Transport, transport))  # uvloop's transports do not subclass asyncio.Transport
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) >= 2 else str(name)
        self._pings.start()
        self.http2.initiate_connection()
        self.http2.increment_flow_control_window(CONNECTION_WINDOW_BYTES)
        self.output.flush()

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
        self.output.flush()

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
        self.output.is_paused = True

    def resume_writing(self) -> None:
        self.output.is_paused = False
        self.output.replace(self.streams)
        self.output.flush()

    def connection_lost(self, error: Exception | None) -> None:
        why = f": {error}" if error is not None else ""
        self._let_go(RpcError(Status.UNAVAILABLE, f"the connection to {self.peer} ended{why}"))

    # -- streams ----------------------------------------------------------------------------------------------

    def add_stream(self, stream_id: int, receiver: Receiver) -> Stream:
        """Registers a new call."""
        window = StreamWindow(self._window, self.output, stream_id)
        stream = Stream(self, self.output, window, stream_id, receiver, self._message_bytes_max)
        self.streams[stream_id] = stream
        return stream

    def send_headers(self, stream: Stream, headers: Headers) -> None:
        """Sends headers with the next flush. Ends the call as cancelled if its stream was reset meanwhile."""
        if self.lost is None:
            try:
                self.http2.send_headers(stream.id, headers)
            except h2.exceptions.ProtocolError as error:  # the stream was reset in the meantime
                self.cut(stream, RpcError(Status.CANCELLED, str(error)))
            self.output.flush_soon()

    def reset(self, stream: Stream) -> None:
        """Cancels a call with RST_STREAM."""
        if self.lost is None and not stream.is_over:
            stream.window.give_back()
        if not stream.is_over:
            self.on_buffered(-stream.buffered_bytes)
        stream.is_over = True
        self.streams.pop(stream.id, None)
        self.output.forget(stream)
        if self.lost is None:
            try:
                self.http2.reset_stream(stream.id, error_code=8)  # CANCEL
            except h2.exceptions.ProtocolError:
                return  # the stream has already ended
            self.output.flush_soon()

    def close(self) -> None:
        """Sends GOAWAY and closes the connection. Running calls fail."""
        if self.lost is None:
            self.http2.close_connection()
            self.output.flush()
        self._let_go(RpcError(Status.UNAVAILABLE, "the connection was closed"))

    def abort(self) -> None:
        """Closes the connection without sending anything. Running calls fail."""
        self.output.abort()
        self._let_go(RpcError(Status.UNAVAILABLE, "the connection was closed"))

    # -- closing ----------------------------------------------------------------------------------------------

    def _fail(self, error: RpcError) -> None:
        self.output.replace({})
        self.output.flush()  # sends the GOAWAY of `h2`, if there is one
        self._let_go(error)

    def _let_go(self, error: RpcError) -> None:
        if self.lost is None:
            self.lost = error
            self._pings.stop()
            self.output.close()
            streams, self.streams = self.streams, {}
            for stream in streams.values():
                self.cut(stream, error)
            self.on_lost(error)

    def on_lost(self, error: RpcError) -> None:
        """Called when the connection has ended. A server overrides it."""

    def cut(self, stream: Stream, error: RpcError) -> None:
        """Ends a call that the peer has reset or that can no longer be served."""
        self.streams.pop(stream.id, None)
        stream.window.give_back()
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
            stream.end_receiving(_dict(event.headers))

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
        self._window.size_bytes -= size
        if stream is None or stream.has_ended or stream.is_refused:
            if size:
                self._window.widen(size)  # nobody on this side wants it any more
            return
        stream.window.size_bytes -= size
        if self._window.size_bytes < 0 or stream.window.size_bytes < 0:
            self._fail(RpcError(Status.INTERNAL, "the peer sent more than the window allows"))
            return
        self._take(stream, data, size)

    def _take(self, stream: Stream, data: bytes, size: int) -> None:
        counted_bytes = stream.buffered_bytes
        stream.window.uncredited_bytes += size
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
            stream.window.credit(surplus)
        else:
            stream.window.early_credit_bytes -= surplus
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
            stream.end_receiving({})

    def on_call_over(self, stream: Stream) -> None:
        """Called when a server has sent its trailers. Whatever the client still sends is discarded."""
        stream.is_over = True
        self.on_buffered(-stream.buffered_bytes)
        self.streams.pop(stream.id, None)
        stream.window.give_back()
        if not stream.has_ended:
            self.http2.reset_stream(stream.id, error_code=0)

    def _on_reset(self, event: h2.events.StreamReset) -> None:
        stream = self.streams.get(_id(event))
        if stream is not None:
            self.cut(stream, RpcError(Status.CANCELLED, f"the call was reset (HTTP/2 error code {event.error_code})"))

    def _on_window(self, event: h2.events.WindowUpdated) -> None:
        if _id(event):
            stream = self.streams.get(_id(event))
            if stream is not None:
                self.output.add(stream)
        else:
            self.output.replace(self.streams)

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
    h2.events.RemoteSettingsChanged: lambda connection, _: connection.output.replace(connection.streams),
    h2.events.PingAckReceived: lambda connection, _: connection._pings.on_answered(),
    h2.events.ConnectionTerminated: Http2Connection._on_terminated,
}

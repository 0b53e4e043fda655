"""The server side: accepts connections, dispatches calls to methods, and lets running calls finish when it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import h2.events

from ottla.net.grpc.connection import Http2Connection
from ottla.net.grpc.pings import PingTimes
from ottla.net.grpc.status import RpcError, Status, encode_status_message
from ottla.net.grpc.stream import Headers, Receiver, Stream

log = logging.getLogger("ottla.rpc")

CONTENT_TYPE = "application/grpc"
RESPONSE_HEADERS: Headers = [(":status", "200"), ("content-type", CONTENT_TYPE)]
CONNECTIONS_MAX = 1000
BUFFERED_BYTES_MAX = 256 * 1024 * 1024
PING_TIMES = PingTimes(every_s=20.0, patience_s=20.0)
LOOK_AGAIN_S = 0.01

Method = Callable[["Call"], Receiver]
"""Begins a call. Returns the receiver of the client's messages."""
Unary = Callable[[bytes], Awaitable[bytes]]


class Call:
    """One call, for the method that serves it."""

    __slots__ = ("stream",)

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    @property
    def unsent_bytes(self) -> int:
        """Bytes queued for the client that flow control still holds back."""
        return self.stream.unsent_bytes

    @property
    def is_over(self) -> bool:
        """True once the call has ended or was lost; messages sent after that are dropped."""
        return self.stream.is_over

    def begin(self) -> None:
        """Sends the response headers, which tell the client that the call is served. The first `send` does so too."""
        if not self.stream.has_headers and not self.stream.is_over:
            self.stream.has_headers = True
            self.stream.send_headers(RESPONSE_HEADERS)

    def send(self, message: bytes | bytearray, *, now: bool = False) -> None:
        """Sends a message, after the response headers if it is the first. `now` is that of `Stream.send`."""
        self.begin()
        self.stream.send(message, now=now)

    def finish(self, status: int = Status.OK, message: str = "") -> None:
        """Ends the call with a status, after all messages are sent."""
        trailers: Headers = [("grpc-status", str(int(status)))]
        if message:
            trailers.append(("grpc-message", encode_status_message(message)))
        if not self.stream.has_headers:  # a response that consists of trailers only
            self.stream.has_headers = True
            trailers = [*RESPONSE_HEADERS, *trailers]
        self.stream.end(trailers)


class ServerConnection(Http2Connection):
    """A connection that a client has opened."""

    def __init__(self, server: RpcServer) -> None:
        super().__init__(is_client=False, ping_times=PING_TIMES)
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if len(self._server.connections) >= CONNECTIONS_MAX:
            log.warning("rejected a connection: %d are already open", CONNECTIONS_MAX)
            transport.close()
            return
        self._server.connections[self] = None
        super().connection_made(transport)

    def on_request(self, event: h2.events.RequestReceived) -> None:
        headers = {str(name): str(value) for name, value in event.headers or ()}
        stream = self.add_stream(int(event.stream_id or 0), Receiver())
        call = Call(stream)
        method = self._server.methods.get(headers.get(":path", ""))
        if not headers.get("content-type", "").startswith(CONTENT_TYPE):
            call.finish(Status.INVALID_ARGUMENT, f"this is a gRPC server; the content-type must be {CONTENT_TYPE}")
        elif method is None:
            call.finish(Status.UNIMPLEMENTED, f"there is no method {headers.get(':path')}")
        elif self._server.is_stopping:
            call.finish(Status.UNAVAILABLE, "the broker is stopping")
        else:
            stream.receiver = method(call)

    def on_bad_message(self, stream: Stream, error: RpcError) -> None:
        receiver, stream.receiver = stream.receiver, Receiver()
        receiver.on_lost(error)
        Call(stream).finish(error.status, error.message)

    def on_buffered(self, change_bytes: int) -> None:
        self._server.buffered_bytes += change_bytes
        if change_bytes > 0 and self._server.buffered_bytes > BUFFERED_BYTES_MAX:
            raise RpcError(Status.RESOURCE_EXHAUSTED, "too many incomplete messages; send smaller ones")

    def on_lost(self, error: RpcError) -> None:
        self._server.connections.pop(self, None)


class RpcServer:
    """A gRPC server. `methods` maps the path of each method, such as "/ottla.wal.v1.Wal/Tail", to its function."""

    def __init__(self, methods: Mapping[str, Method]) -> None:
        self.methods = dict(methods)
        self.connections: dict[ServerConnection, None] = {}
        self.is_stopping = False
        self.buffered_bytes = 0
        """The size of the incomplete messages of all connections."""
        self._listening: asyncio.AbstractServer | None = None

    async def start(self, host: str, port: int) -> int:
        """Starts to listen and returns the port. Raises OSError if the address is not available."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(lambda: ServerConnection(self), host, port)
        return int(self._listening.sockets[0].getsockname()[1])

    async def stop(self, grace_s: float) -> None:
        """Rejects new calls, waits up to `grace_s` for running calls to end, and closes all connections."""
        self.is_stopping = True
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        while any(each.streams for each in self.connections) and loop.time() < until:  # noqa: ASYNC110 - peers end streams
            await asyncio.sleep(LOOK_AGAIN_S)
        for connection in list(self.connections):
            connection.close()

    async def abort(self) -> None:
        """Closes all connections at once."""
        self.is_stopping = True
        if self._listening is not None:
            self._listening.close()
        for connection in list(self.connections):
            connection.abort()


class _UnaryReceiver(Receiver):
    """Receives one request and sends the reply that a coroutine returns."""

    __slots__ = ("_call", "_name", "_serve", "_task")

    def __init__(self, name: str, call: Call, serve: Unary) -> None:
        self._name = name
        self._call = call
        self._serve = serve
        self._task: asyncio.Task[None] | None = None

    def on_message(self, message: bytes) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._run(message))
        self._call.stream.credit(len(message))

    def on_end(self, trailers: dict[str, str]) -> None:
        if self._task is None:
            self._call.finish(Status.INVALID_ARGUMENT, "the request is missing")

    def on_lost(self, error: RpcError) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, request: bytes) -> None:
        await guarded(self._name, self._call, self._answer(request))

    async def _answer(self, request: bytes) -> None:
        self._call.send(await self._serve(request))


def unary(name: str, serve: Unary) -> Method:
    """Returns a method with one request and one reply. `name` appears in the log if `serve` fails."""
    return lambda call: _UnaryReceiver(name, call, serve)


async def guarded(name: str, call: Call, serving: Awaitable[None]) -> None:
    """Awaits the work of a call and ends the call with a status. Bad input and bugs affect no other call."""
    try:
        await serving
    except RpcError as error:
        call.finish(error.status, error.message)
    except ValueError as error:
        call.finish(Status.INVALID_ARGUMENT, str(error))
    except Exception:
        log.exception("a call to %s failed", name)
        call.finish(Status.INTERNAL, "internal error; see the broker's log")
    else:
        call.finish()

"""The client side: one connection to one server and the calls on it. Pings detect a server that has vanished."""

from __future__ import annotations

import asyncio

from ottla.net.grpc.connection import Http2Connection
from ottla.net.grpc.pings import PingTimes
from ottla.net.grpc.status import ConnectionLostError, RpcError, Status, decode_status_message
from ottla.net.grpc.stream import Headers, Receiver, Stream
from ottla.protocol.model.addresses import split_address

PING_TIMES = PingTimes(every_s=2.0, patience_s=5.0)
CONNECT_PATIENCE_S = 5.0


class Channel(Http2Connection):
    """A connection to a gRPC server, opened with `Channel.connect`."""

    def __init__(self) -> None:
        super().__init__(is_client=True, ping_times=PING_TIMES)
        self.address = ""

    @classmethod
    async def connect(cls, address: str, patience_s: float = CONNECT_PATIENCE_S) -> Channel:
        """Opens a connection. Raises ConnectionLostError if the server does not respond within `patience_s`."""
        host, port = split_address(address)
        try:
            async with asyncio.timeout(patience_s):
                _, channel = await asyncio.get_running_loop().create_connection(cls, host, port)
        except (OSError, TimeoutError) as error:
            raise ConnectionLostError(f"cannot connect to {address}: {str(error) or 'it took too long'}") from error
        channel.address = address
        return channel

    def call(self, path: str, receiver: Receiver) -> Stream:
        """Begins a call. Raises ConnectionLostError if the connection has ended."""
        if self.lost is not None:
            raise ConnectionLostError(str(self.lost))
        stream_id = self.http2.get_next_available_stream_id()
        headers: Headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", self.address),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "ottla-wal"),
        ]
        self.http2.send_headers(stream_id, headers)
        self.output.flush_soon()
        return self.add_stream(stream_id, receiver)

    async def unary(self, path: str, request: bytes, patience_s: float | None = None) -> bytes:
        """Sends a request and returns the reply. Raises RpcError.

        With `patience_s`, raises DEADLINE_EXCEEDED after that time.
        """
        receiver = _OneReply()
        stream = self.call(path, receiver)
        stream.send(request)
        stream.end()
        try:
            async with asyncio.timeout(patience_s):
                return await receiver.reply
        except TimeoutError as error:
            raise RpcError(
                Status.DEADLINE_EXCEEDED, f"{self.address} did not respond within {patience_s:g} s"
            ) from error
        finally:
            stream.reset()


class _OneReply(Receiver):
    def __init__(self) -> None:
        self.reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._message: bytes | None = None

    def on_message(self, message: bytes) -> None:
        self._message = message

    def on_headers(self, headers: dict[str, str]) -> None:
        if "grpc-status" in headers:
            self.on_end(headers)

    def on_end(self, trailers: dict[str, str]) -> None:
        if self.reply.done():
            return
        failed = status_of(trailers)
        if failed is not None:
            self.reply.set_exception(failed)
        elif self._message is None:
            self.reply.set_exception(RpcError(Status.INTERNAL, "the response is missing"))
        else:
            self.reply.set_result(self._message)

    def on_lost(self, error: RpcError) -> None:
        if not self.reply.done():
            self.reply.set_exception(error if error.status == Status.CANCELLED else ConnectionLostError(str(error)))


def status_of(trailers: dict[str, str]) -> RpcError | None:
    """Returns the error that the trailers report, or None if the call succeeded."""
    text = trailers.get("grpc-status")
    if text == "0":
        return None
    if text is None or not text.isdigit():
        return RpcError(Status.UNKNOWN, "the server ended the call without a status")
    return RpcError(int(text), decode_status_message(trailers.get("grpc-message", "")))

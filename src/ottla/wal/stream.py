"""One append stream of a writer, from its beginning to its end."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, Protocol

from ottla.net.grpc.channel import Channel, status_of
from ottla.net.grpc.status import RpcError, Status
from ottla.net.grpc.stream import Receiver
from ottla.protocol.wire.wal_append import (
    AppendReply,
    AppendRun,
    Begin,
    StreamBegun,
    WalFailure,
    decode_append_reply,
    encode_begin,
    encode_run,
)
from ottla.wal.append import Append
from ottla.wal.leaders import SERVICE

RUN_BYTES_MAX = 256 * 1024
RUN_COUNT_MAX = 4096
UNSENT_BYTES_MAX = 1024 * 1024
"""Above this limit, appends wait in the queue, where they can still be combined into larger messages."""


class StreamEnd(NamedTuple):
    """The reason why a stream ended."""

    error: Exception
    failure: WalFailure | None = None
    made_progress: bool = False


class StreamOwner(Protocol):
    """The writer that a stream notifies."""

    def on_begun(self, stream: WriterStream, begun: StreamBegun) -> None:
        """Called when the leader has accepted the stream."""
        ...

    def on_reply(self, reply: AppendReply) -> None:
        """Called for each reply to appends, in order."""
        ...


class WriterStream(Receiver):
    """Sends appends to one leader and passes its replies to the writer."""

    def __init__(self, writer: StreamOwner, channel: Channel, begin: Begin) -> None:
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[StreamEnd] = self._loop.create_future()
        self._unsent: deque[Append] = deque()
        self._is_flushing = False
        self._has_begun = False
        self._made_progress = False
        self._failure: WalFailure | None = None
        self._channel = channel
        self._stream = channel.call(f"{SERVICE}/Append", self)
        self._stream.send(encode_begin(begin))

    async def run(self) -> StreamEnd:
        """Waits until the stream ends."""
        return await self._ended

    def close(self) -> None:
        """Ends the stream."""
        self._end(RpcError(Status.CANCELLED, "closed"))
        self._stream.reset()

    # -- sending ------------------------------------------------------------------------------------------------

    def push(self, append: Append) -> None:
        """Queues an append, to be sent at the end of the current turn of the loop."""
        self._unsent.append(append)
        if not self._is_flushing and self._has_begun:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        while self._unsent and self._stream.unsent_bytes < UNSENT_BYTES_MAX and not self._ended.done():
            self._stream.send(encode_run(self._next_run()), now=True)

    def _next_run(self) -> AppendRun:
        """Returns the next message. Consecutive single appends are combined; an atomic append is sent alone."""
        unsent = self._unsent
        first = unsent.popleft()
        first.is_sent = True
        if first.is_whole:
            return AppendRun(first.first_id, first.data, True, first.expected_end)
        data, size, next_id = list(first.data), first.size_bytes, first.first_id + first.count
        while unsent and size < RUN_BYTES_MAX and len(data) < RUN_COUNT_MAX:
            append = unsent[0]
            if append.is_whole or append.first_id != next_id:
                break
            unsent.popleft()
            append.is_sent = True
            data += append.data
            size += append.size_bytes
            next_id += append.count
        return AppendRun(first.first_id, data)

    def on_drained(self) -> None:
        """Sends queued appends once the connection has room."""
        if self._unsent:
            self._flush()

    # -- replies ------------------------------------------------------------------------------------------------

    def on_message(self, message: bytes) -> None:
        """Handles a reply of the leader."""
        self._stream.credit(len(message))
        if self._ended.done():
            return
        try:
            reply = decode_append_reply(message)
        except ValueError as error:
            self._end(RpcError(Status.INTERNAL, f"cannot decode the broker's response: {error}"))
            return
        self._made_progress = self._made_progress or bool(reply.acknowledged)
        if reply.begun is not None:
            self._has_begun = True
            self._writer.on_begun(self, reply.begun)
            self._flush()
        self._writer.on_reply(reply)
        if reply.failure is not None:
            self._failure = reply.failure
            self._end(RpcError(Status.UNAVAILABLE, reply.failure.message))

    def on_headers(self, headers: dict[str, str]) -> None:
        """Handles response headers; a status in them ends the stream."""
        if "grpc-status" in headers:
            self.on_end(headers)

    def on_end(self, trailers: dict[str, str]) -> None:
        """Ends the stream with the status of the broker."""
        self._end(status_of(trailers) or RpcError(Status.UNAVAILABLE, "the broker ended the stream"))

    def on_lost(self, error: RpcError) -> None:
        """Ends the stream because the connection was lost."""
        self._end(error)

    def _end(self, error: RpcError) -> None:
        if not self._ended.done():
            self._ended.set_result(StreamEnd(error, self._failure, self._made_progress))

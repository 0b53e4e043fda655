"""The outgoing half of an HTTP/2 connection: combines the output of `h2` and of streams into few writes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import h2.connection


class PendingStream(Protocol):
    """A stream with output."""

    @property
    def id(self) -> int:
        """The number of the HTTP/2 stream."""
        ...

    def pump(self) -> None:
        """Passes its output to `Output.write`, as far as the peer's window allows."""
        ...


class Output:
    """Gathers output and writes it once per iteration of the event loop."""

    __slots__ = ("_is_flushing", "_loop", "_pieces", "_streams", "_transport", "http2", "is_closed", "is_paused")

    def __init__(self, http2: h2.connection.H2Connection) -> None:
        self.http2 = http2
        self.is_closed = False
        self.is_paused = False
        """Whether the transport's buffer is full. The output of streams then waits."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes | memoryview] = []
        """Output to write, in this order, before the pending output of `h2`."""
        self._streams: dict[int, PendingStream] = {}
        self._is_flushing = False

    def open(self, transport: asyncio.Transport) -> None:
        """Begins to write. Until then output is only gathered."""
        self._transport = transport

    def close(self) -> None:
        """Closes the transport. Later output is dropped."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes the transport at once, with what it has not sent."""
        if self._transport is not None:
            self._transport.abort()

    def add(self, stream: PendingStream) -> None:
        """Includes the stream's output in the next flush."""
        self._streams[stream.id] = stream

    def replace(self, streams: Mapping[int, PendingStream]) -> None:
        """Includes the output of exactly these streams in the next flush."""
        self._streams = dict(streams)

    def forget(self, stream: PendingStream) -> None:
        """Drops the output of a stream that has ended."""
        self._streams.pop(stream.id, None)

    def pump_soon(self, stream: PendingStream) -> None:
        """Schedules the stream's output for the next iteration of the event loop."""
        self._streams[stream.id] = stream
        self.flush_soon()

    def pump_now(self, stream: PendingStream) -> None:
        """Sends the stream's output at once, as far as the peer's window allows."""
        self._streams[stream.id] = stream
        self.flush()

    def flush_soon(self) -> None:
        """Flushes in the next iteration of the event loop."""
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._is_flushing = False
        self.flush()

    def flush(self) -> None:
        """Writes all pending output to the transport."""
        if self.is_closed or self._transport is None:
            return
        if self._streams and not self.is_paused:
            waiting, self._streams = self._streams, {}
            for stream in waiting.values():
                stream.pump()
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

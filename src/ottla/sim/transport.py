"""asyncio's transport and server over the simulated kernel's sockets.

As with uvloop, data written during a turn of the loop is sent at its end, and buffers are not copied before that: a
caller that modifies a buffer in the meantime sends the modified data.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, cast

from ottla.sim.sockets import ListeningSocket, SimSocket

if TYPE_CHECKING:
    from ottla.sim.turn_loop import TurnLoop

HIGH_WATER_BYTES = 64 * 1024
READ_BYTES_MAX = 256 * 1024
"""Maximum number of bytes that a plain protocol gets with one read."""

READS_A_TURN = 32

Buffer = bytes | bytearray | memoryview


class SimTransport:
    """A transport over a simulated socket, with the interface of `asyncio.Transport`."""

    def __init__(
        self,
        loop: TurnLoop,
        sock: SimSocket,
        protocol: asyncio.BaseProtocol,
        made: asyncio.Future[None] | None = None,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._network = sock.inbound.network
        self.set_protocol(protocol)
        self._context = copy_context()
        self._out: deque[memoryview] = deque()
        self._out_bytes = 0
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._is_writing_paused = False
        self._is_flush_due = False
        self._has_written_eof = False
        self._is_reading = False
        self._wants_reading = True
        self._has_read_eof = False
        self._is_look_due = False
        self._is_closing = False
        self._is_lost = False
        self._loop._call_soon(self._begin, (made,), None)

    def _begin(self, made: asyncio.Future[None] | None) -> None:
        self._call(self._protocol.connection_made, self)
        self._sock.notify = self._on_kernel
        self._is_reading = True
        self._on_kernel()
        if made is not None and not made.done():
            made.set_result(None)

    def _call(self, method: Callable[..., Any], *args: Any) -> Any:
        """Calls the protocol. If it raises, it loses its connection and the run fails."""
        try:
            return method(*args)
        except Exception as error:
            name = getattr(method, "__name__", "a callback")
            self._loop.call_exception_handler(
                {"message": f"{name}() failed", "exception": error, "transport": self, "protocol": self._protocol}
            )
            self._lose(error)
            return None

    # -- reading ---------------------------------------------------------------------------------------------

    def _on_kernel(self) -> None:
        """Schedules a check for the next turn after the kernel reported data, room or an error."""
        if not self._is_look_due and not self._is_lost:
            self._is_look_due = True
            self._loop._call_soon(self._look, (), self._context)

    def _look(self) -> None:
        self._is_look_due = False
        if self._is_lost:
            return
        if self._out:
            self._flush()
        sock = self._sock
        if not self._may_read():
            return
        if sock.received_bytes:
            for _ in range(READS_A_TURN):
                if not self._read() or not sock.received_bytes or not self._may_read():
                    break
            if sock.is_readable:
                self._on_kernel()
        elif sock.error is not None:
            self._lose(sock.error)
        elif sock.has_eof and not self._has_read_eof:
            self._has_read_eof = True
            if not self._call(self._protocol.eof_received):
                self.close()

    def _read(self) -> bool:
        """Reads once. Returns whether the buffer was filled, so that there may be more: libuv then reads again in the
        same turn."""
        sock, protocol, network = self._sock, self._protocol, self._network
        limit = sock.received_bytes
        if limit > 1 and network.scheduler._random() < network.settings.short_read_share:
            limit = network.scheduler.rng.randrange(1, limit)
        if self._is_buffered:
            buffer = self._call(protocol.get_buffer, -1)
            if buffer is None:
                return False
            byte_count = sock.recv_into(memoryview(buffer)[:limit])
            self._call(protocol.buffer_updated, byte_count)
            return byte_count == len(buffer)
        data = bytearray(min(limit, READ_BYTES_MAX))
        sock.recv_into(memoryview(data))
        self._call(protocol.data_received, bytes(data))
        return len(data) == READ_BYTES_MAX

    def is_reading(self) -> bool:
        """Returns whether arriving data is passed to the protocol."""
        return self._may_read()

    def _may_read(self) -> bool:
        return self._is_reading and self._wants_reading and not self._is_closing

    def pause_reading(self) -> None:
        """Leaves arriving data in the kernel, until its window is full."""
        self._wants_reading = False

    def resume_reading(self) -> None:
        """Passes data to the protocol again, starting in a later turn of the loop."""
        if not self._is_closing and not self._wants_reading:
            self._wants_reading = True
            self._on_kernel()

    # -- writing ---------------------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Sends data at the end of the turn. See `writelines`."""
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Sends buffers at the end of the turn, or at once above the high-water mark. A transport that is closing drops
        them. Raises RuntimeError after `write_eof`."""
        if self._has_written_eof:
            raise RuntimeError("cannot write after write_eof")
        views = [memoryview(data).cast("B") for data in list_of_data if len(data)]
        if self._is_closing or self._is_lost:
            return
        for view in views:
            self._out.append(view)
            self._out_bytes += len(view)
        if self._out_bytes > self._high:
            self._flush()
            self._maybe_pause_writing()
        elif self._out and not self._is_flush_due:
            self._is_flush_due = True
            self._loop.at_turn_end(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._is_lost:
            return
        if self._sock.error is not None and (self._out or self._has_written_eof):
            self._lose(self._sock.error)
            return
        if self._out:
            self._out_bytes -= self._sock.send_from(self._out)
            if self._is_writing_paused and self._out_bytes <= self._low:
                self._is_writing_paused = False
                self._call(self._protocol.resume_writing)
        if not self._out:
            if self._has_written_eof:
                self._sock.shutdown()
            if self._is_closing:
                self._lose(None)

    def _maybe_pause_writing(self) -> None:
        if self._out_bytes > self._high and not self._is_writing_paused:
            self._is_writing_paused = True
            self._call(self._protocol.pause_writing)

    def write_eof(self) -> None:
        """Sends the end of the stream after all written data."""
        if not self._is_closing and not self._has_written_eof:
            self._has_written_eof = True
            self._loop.at_turn_end(self._flush)

    def can_write_eof(self) -> bool:
        """Returns True: simulated connections can be half-closed."""
        return True

    def get_write_buffer_size(self) -> int:
        """Returns the number of written bytes that the kernel has not accepted."""
        return self._out_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Returns the low-water and the high-water mark in bytes."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Sets the marks at which the protocol pauses and resumes writing, with asyncio's defaults. Raises ValueError
        unless `high >= low >= 0`."""
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low
        if not self._high >= self._low >= 0:
            raise ValueError(f"high ({high}) must be at least low ({low}), and low at least 0")
        self._maybe_pause_writing()

    # -- closing ---------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        """Returns whether the transport is closed, or closes once its data is sent."""
        return self._is_closing

    def close(self) -> None:
        """Closes the transport after all written data has been sent."""
        if not self._is_closing:
            self._is_closing = True
            if not self._out:
                self._lose(None)

    def abort(self) -> None:
        """Closes the transport at once. Unsent data is dropped."""
        self._lose(None)

    def _lose(self, error: BaseException | None) -> None:
        if not self._is_lost:
            self._is_lost = self._is_closing = True
            self._out.clear()
            self._out_bytes = 0
            self._loop._call_soon(self._end, (error,), None)

    def _end(self, error: BaseException | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._sock.close()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Passes all further events to another protocol."""
        self._protocol: Any = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Returns the socket, the address of its peer or its own, by asyncio's names for them."""
        sock = self._sock
        return {"socket": sock, "peername": sock.remote, "sockname": sock.local}.get(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Returns the protocol that receives the events."""
        return cast(asyncio.BaseProtocol, self._protocol)


class SimServer(asyncio.AbstractServer):
    """The server that `loop.create_server` returns."""

    def __init__(
        self, loop: TurnLoop, listening: ListeningSocket, protocol_factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._loop = loop
        self._listening = listening
        self._protocol_factory = protocol_factory
        self._serving_forever: asyncio.Future[None] | None = None
        self._is_closed = False
        self.sockets: tuple[ListeningSocket, ...] = (listening,)

    def get_loop(self) -> TurnLoop:
        """Returns the loop of the process that listens."""
        return self._loop

    def is_serving(self) -> bool:
        """Returns whether the server accepts connections."""
        return self._listening.is_watched

    async def start_serving(self) -> None:
        """Accepts connections from now on. Does nothing if the server is closed."""
        if not self._is_closed:
            self._loop.add_reader(self._listening, self._accept)

    async def serve_forever(self) -> None:
        """Accepts connections until the caller is cancelled or the server is closed, and raises CancelledError then."""
        await self.start_serving()
        self._serving_forever = self._loop.create_future()
        try:
            await self._serving_forever
        finally:
            self._serving_forever = None
            self.close()

    def close(self) -> None:
        """Stops listening and ends `serve_forever`. Accepted connections stay open."""
        if not self._is_closed:
            self._is_closed = True
            self.sockets = ()
            self._listening.close()
            if self._serving_forever is not None:
                self._serving_forever.cancel()

    async def wait_closed(self) -> None:
        """Returns at once, without waiting for accepted connections to end."""
        return

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listening.accept()
            except BlockingIOError:
                return
            SimTransport(self._loop, accepted, self._protocol_factory())

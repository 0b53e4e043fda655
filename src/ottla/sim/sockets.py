"""Sockets of the simulated kernel: one at each end of a connection, and the accept queue of a listener.

As on Linux, a closed socket answers data with a reset, and closing a socket with unread data sends a reset.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

from ottla.sim.pipes import DATA, END, RESET, Kind, Pipe, PoweredHost

if TYPE_CHECKING:
    from ottla.sim.links import NetworkSettings

Address = tuple[str, int]


class NetworkHost(PoweredHost, Protocol):
    """A host, as the network sees it."""

    sockets: dict[SimSocket, None]

    @property
    def name(self) -> str:
        """The name under which other hosts connect to it."""
        ...

    @property
    def incarnation(self) -> int:
        """Number of processes that the host has started so far."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether the host has a process, paused or not."""
        ...


class ListenerNetwork(Protocol):
    """The network of a listening socket."""

    settings: NetworkSettings

    def forget_listening(self, listening: ListeningSocket) -> None:
        """Frees the port of a socket that no longer listens."""
        ...


class SimSocket:
    """One end of a connection in the kernel, with enough of `socket.socket` for the server's listener."""

    def __init__(self, host: NetworkHost, local: Address, remote: Address, inbound: Pipe, outbound: Pipe) -> None:
        self.host = host
        self.local = local
        self.remote = remote
        self.inbound = inbound
        self.outbound = outbound
        inbound.reader = outbound.writer = self
        self.number = inbound.network.next_number()
        self.listening: ListeningSocket | None = None
        """The listening socket that may accept it."""
        self.notify: Callable[[], None] | None = None
        """Called when data has arrived, when there is room again, or when the connection broke."""
        self.error: OSError | None = None
        self.has_eof = False
        self.received_bytes = 0
        self._received: deque[memoryview] = deque()
        self._ended = False
        self._closed = False
        host.sockets[self] = None

    # -- called by the process -----------------------------------------------------------------------------------

    @property
    def is_readable(self) -> bool:
        """Whether there is data, the end of the stream or an error for the process."""
        return self.received_bytes > 0 or self.has_eof or self.error is not None

    def recv_into(self, buffer: memoryview) -> int:
        """Reads as much as is available and fits; returns 0 if nothing is available."""
        filled = 0
        size = len(buffer)
        while self._received and filled < size:
            piece = self._received.popleft()
            if len(piece) <= size - filled:
                buffer[filled : filled + len(piece)] = piece
                filled += len(piece)
                continue
            part = size - filled
            buffer[filled:size] = piece[:part]
            self._received.appendleft(piece[part:])
            filled = size
        self.received_bytes -= filled
        if filled:
            self.inbound.on_read(filled)
        return filled

    def send_from(self, queue: deque[memoryview]) -> int:
        """Sends what the kernel accepts from the front of a queue of buffers, and removes it there. Returns the number
        of bytes. If some are left, `notify` is called when there is room."""
        assert self.error is None, "the connection is broken"
        taken: list[memoryview] = []
        taken_bytes = 0
        # The actions of a dead process have no effect.
        room_bytes = sys.maxsize if self._closed else max(self.outbound.room_bytes(), 0)
        while queue and taken_bytes < room_bytes:
            view = queue.popleft()
            rest = room_bytes - taken_bytes
            if len(view) > rest:
                queue.appendleft(view[rest:])
                view = view[:rest]
            taken.append(view)
            taken_bytes += len(view)
        if self._closed:
            return taken_bytes
        if queue:
            self.outbound.want_room()
        if taken:
            self._push_in_pieces(b"".join(taken))
        return taken_bytes

    def _push_in_pieces(self, data: bytes) -> None:
        """Splits data into pieces that arrive separately."""
        network = self.outbound.network
        scheduler, split_share = network.scheduler, network.settings.split_share
        while len(data) > 1 and scheduler._random() < split_share:
            at = scheduler.rng.randrange(1, len(data))
            self.outbound.push(DATA, data[:at])
            data = data[at:]
        self.outbound.push(DATA, data)

    def shutdown(self, how: int = socket.SHUT_WR) -> None:
        """Sends the end of the stream after all written data. Only writing is shut down, whatever `how` says."""
        if not self._ended and not self._closed and self.error is None:
            self._ended = True
            self.outbound.push(END)

    def close(self) -> None:
        """Closes the socket: sends a reset if data is unread, as Linux does, else the end of the stream after all
        written data."""
        if self._closed:
            return
        self._closed = True
        self.notify = None
        self.host.sockets.pop(self, None)
        if self.error is None:
            if self.received_bytes:
                self.outbound.push(RESET)
            elif not self._ended:
                self.outbound.push(END)
        self._received.clear()
        self.received_bytes = 0

    def vanish(self, kept: int) -> None:
        """Drops the socket of a machine without power. The first `kept` pieces that it sent stay in flight."""
        self._closed = True
        self.notify = None
        self._received.clear()
        self.outbound.drop(kept)

    def setblocking(self, flag: bool) -> None:
        """Does nothing: a simulated socket never blocks."""
        return

    def setsockopt(self, *options: Any) -> None:
        """Does nothing: options have no effect on the simulated network."""
        return

    def fileno(self) -> int:
        """Returns a number that grows with the open sockets of the process, as descriptors do."""
        return 16 + len(self.host.sockets)

    def getpeername(self) -> Address:
        """Returns the host name and port of the other end."""
        return self.remote

    def getsockname(self) -> Address:
        """Returns the host name and port of this end."""
        return self.local

    # -- called by the network ---------------------------------------------------------------------------------

    def on_arrived(self, kind: Kind, data: bytes) -> None:
        scheduler = self.inbound.network.scheduler
        if scheduler.trace.is_recorded:
            scheduler.note(f"{self.host.name}:{self.number} {kind.name} {len(data)} {crc32(data):08x}")
        if kind is RESET:
            self.on_broken(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
        elif self._closed or self.error is not None:
            if kind is not END:
                self.outbound.push(RESET)
        elif kind is DATA:
            self._received.append(memoryview(data))
            self.received_bytes += len(data)
            self._tell()
        elif kind is END:
            self.has_eof = True
            self._tell()
        elif self.listening is None or not self.listening.enqueue(self):
            self._closed = True
            self.host.sockets.pop(self, None)
            self.outbound.push(RESET)

    def on_broken(self, error: OSError) -> None:
        """Breaks the connection. Some kernels let a process read what had arrived before, others do not."""
        if self.error is None and not self._closed:
            self.error = error
            self.outbound.drop()
            if self.inbound.network.scheduler.rng.random() < 0.5:
                self._received.clear()
                self.received_bytes = 0
            self._tell()

    def on_room(self) -> None:
        self._tell()

    def _tell(self) -> None:
        if self.notify is not None:
            self.notify()


class ListeningSocket:
    """A listening socket: enough of `socket.socket` for the server's listener, with the kernel's accept queue."""

    def __init__(self, network: ListenerNetwork, host: NetworkHost, port: int) -> None:
        self.network = network
        self.host = host
        self.port = port
        self._waiting: deque[SimSocket] = deque()
        self._watcher: Callable[[], object] | None = None
        self._is_told = False
        self._closed = False

    @property
    def is_full(self) -> bool:
        """Whether the accept queue has reached the backlog."""
        return len(self._waiting) >= self.network.settings.backlog

    @property
    def is_watched(self) -> bool:
        """Whether a callback is set for new connections."""
        return self._watcher is not None

    def enqueue(self, connection: SimSocket) -> bool:
        """Adds a connection to the accept queue. Returns False if the queue is full or the socket is closed."""
        if self._closed or self.is_full:
            return False
        self._waiting.append(connection)
        self._tell()
        return True

    def accept(self) -> tuple[SimSocket, Address]:
        """Returns the first connection of the queue and its peer's address. Raises BlockingIOError if the queue is
        empty."""
        if not self._waiting:
            raise BlockingIOError
        connection = self._waiting.popleft()
        return connection, connection.remote

    def watch(self, watcher: Callable[[], object] | None) -> bool:
        """Sets the callback for new connections; None removes it. Returns whether one was set before."""
        was_watched = self._watcher is not None
        self._watcher = watcher
        self._is_told = False
        self._tell()
        return was_watched

    def notify_again(self) -> None:
        """Allows the next call of the callback, and makes it at once if the queue is not empty."""
        self._is_told = False
        self._tell()

    def _tell(self) -> None:
        if self._watcher is not None and self._waiting and not self._is_told:
            self._is_told = True
            self._watcher()

    def close(self) -> None:
        """Stops listening. Connections in the accept queue are closed."""
        if not self._closed:
            self._closed = True
            self._watcher = None
            self.network.forget_listening(self)
            for connection in self._waiting:
                connection.close()
            self._waiting.clear()

    def getsockname(self) -> Address:
        """Returns the host name and the port."""
        return self.host.name, self.port

    def fileno(self) -> int:
        """Returns a constant: there are no descriptors in a simulated world."""
        return 16

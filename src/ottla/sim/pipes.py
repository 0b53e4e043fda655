"""One direction of a simulated connection: bytes in order, in pieces of any size, bounded by a window.

A pipe holds a bounded number of bytes that its reader has not read. When it is full, its writer waits for the reader's
acknowledgement. Data that cannot arrive because of a cut link or a machine without power stalls, as with TCP
retransmission, and arrives after the fault has healed. After `give_up_s` the writer gets a timeout.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ottla.sim.links import Link, NetworkSettings
    from ottla.sim.scheduler import Scheduler


class Kind(Enum):
    """The kind of a piece in flight."""

    OPEN = auto()
    """The last step of the handshake: now the other side may accept."""
    DATA = auto()
    END = auto()
    """FIN."""
    RESET = auto()


OPEN, DATA, END, RESET = Kind  # a member is slower to reach through its class


class PoweredHost(Protocol):
    """The host at one end of a pipe. Nothing arrives there while it has no power."""

    @property
    def is_up(self) -> bool:
        """Whether the machine is on."""
        ...


class PipeEnd(Protocol):
    """The socket at one end of a pipe."""

    @property
    def host(self) -> PoweredHost:
        """The host of the socket."""
        ...

    def on_arrived(self, kind: Kind, data: bytes) -> None:
        """Handles a piece that has arrived."""
        ...

    def on_broken(self, error: OSError) -> None:
        """Handles an error that ends the connection."""
        ...

    def on_room(self) -> None:
        """Called once after `Pipe.want_room`, when the writer may send again."""
        ...


class StreamNetwork(Protocol):
    """The network of a pipe: how its streams behave, and which of them wait for a link."""

    scheduler: Scheduler
    settings: NetworkSettings
    stalled: dict[Pipe, None]
    unacknowledged: dict[Pipe, None]

    def next_number(self) -> int:
        """Returns the number of a new socket, which identifies it in the trace."""
        ...


class Pipe:
    """One direction of a connection."""

    def __init__(self, network: StreamNetwork, link: Link, back: Link) -> None:
        self.network = network
        self._scheduler = network.scheduler
        self.link = link
        self.back = back
        self.writer: PipeEnd
        self.reader: PipeEnd
        self.wants_room = False
        self._in_flight: deque[tuple[float, Kind, bytes]] = deque()
        """Pieces in flight with their arrival times, in order."""
        self._is_moving = False
        self._stalled_since_s: float | None = None
        self._last_arrival_s = 0.0
        self._sent_bytes = 0
        self._read_bytes = 0
        self._acked_bytes = 0
        self._acks: deque[tuple[float, int]] = deque()

    def room_bytes(self) -> int:
        """Returns how many more bytes may be in flight or unread, as far as the writer knows."""
        now_s = self._scheduler.now_s
        acks = self._acks
        while acks and acks[0][0] <= now_s:
            self._acked_bytes = max(acks.popleft()[1], self._acked_bytes)
        return self.network.settings.window_bytes - (self._sent_bytes - self._acked_bytes)

    def want_room(self) -> None:
        """Asks to notify the writer when there is room."""
        self.wants_room = True
        self._await_ack()

    def _await_ack(self) -> None:
        if self._acks:
            self._scheduler._schedule(self._acks[0][0], self._tell_of_room, ())

    def push(self, kind: Kind, data: bytes = b"") -> None:
        """Sends a piece, which arrives after all earlier ones. The caller observes the window (`room_bytes`)."""
        self._sent_bytes += len(data)
        self._last_arrival_s = max(self.link.arrival_s(len(data)), self._last_arrival_s)
        self._in_flight.append((self._last_arrival_s, kind, data))
        self._move()

    def _move(self) -> None:
        if self._in_flight and not self._is_moving and self._stalled_since_s is None:
            self._is_moving = True
            self._scheduler._schedule(self._in_flight[0][0], self._arrive, ())

    def _arrive(self) -> None:
        self._is_moving = False
        now_s = self._scheduler.now_s
        while self._in_flight and self._in_flight[0][0] <= now_s:
            is_passable = self._is_passable()
            if not is_passable and self._in_flight[0][1] is not RESET:
                self._stall()
                return
            _, kind, data = self._in_flight.popleft()
            if is_passable:  # otherwise lost: a reset is not retransmitted
                self.reader.on_arrived(kind, data)
        self._move()

    def _is_passable(self) -> bool:
        """Returns whether pieces can arrive now: the link is not cut, and the reader's machine is on."""
        return self.link.cuts == 0 and self.reader.host.is_up

    def _stall(self) -> None:
        now_s = self._stalled_since_s = self._scheduler.now_s
        self.network.stalled[self] = None
        self._scheduler.after(self.network.settings.give_up_s, self._give_up, now_s)

    def retry(self) -> None:
        """Resumes after a stall if the link is usable again."""
        if self._stalled_since_s is None or not self._is_passable():
            return
        self._stalled_since_s = None
        del self.network.stalled[self]
        if self._in_flight:
            _, kind, data = self._in_flight.popleft()
            # It arrives when the kernel next retransmits.
            pause_s = self._scheduler._random() * self.network.settings.retry_s_max
            arrival_s = self.link.arrival_s(len(data)) + pause_s
            self._in_flight.appendleft((arrival_s, kind, data))
            self._last_arrival_s = max(self._last_arrival_s, arrival_s)
        self._move()

    def _give_up(self, since_s: float) -> None:
        if self._stalled_since_s == since_s:
            self.drop()
            self.writer.on_broken(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

    def drop(self, kept: int = 0) -> None:
        """Drops everything that has not arrived, except the first `kept` pieces in flight."""
        if self._stalled_since_s is not None:
            self._stalled_since_s = None
            del self.network.stalled[self]
            kept = 0
        while len(self._in_flight) > kept:
            self._in_flight.pop()

    @property
    def in_flight_count(self) -> int:
        """Number of pieces that have not arrived."""
        return len(self._in_flight)

    def on_read(self, byte_count: int) -> None:
        """Notes that the reader has taken this many bytes, and acknowledges them."""
        self._read_bytes += byte_count
        self.acknowledge()

    def acknowledge(self) -> None:
        """Sends the number of bytes read back to the writer."""
        if self.back.cuts:
            self.network.unacknowledged[self] = None
            return
        at_s = self.back.arrival_s(0)
        if self._acks:
            at_s = max(at_s, self._acks[-1][0])
        self._acks.append((at_s, self._read_bytes))
        if self.wants_room and len(self._acks) == 1:
            self._await_ack()

    def _tell_of_room(self) -> None:
        if not self.wants_room:
            return
        if self.room_bytes() > 0:
            self.wants_room = False
            self.writer.on_room()
        else:
            self._await_ack()

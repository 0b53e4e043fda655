"""The outgoing half of a connection: gathers replies and writes them.

Replies that are ready are sent with one transport call per iteration of the event loop. Writes to a client that is gone
never raise in the code that completes a future: inside a follower's acknowledgement that would end the replication.
"""

from __future__ import annotations

import asyncio
import logging
from struct import Struct

from ottla.broker.server.limits import WRITE_HIGH_WATER_BYTES
from ottla.broker.server.port import Buffers

log = logging.getLogger("ottla.server")

JOINED_BYTES_MAX = 8 * 1024
"""Replies up to this total size are joined, because one buffer is cheaper to send than many. Larger ones never are."""

_SIZE = Struct(">i")


class ReplyWriter:
    """Writes the replies of one connection, and closes it."""

    __slots__ = ("_flush_is_due", "_loop", "_peer", "_transport", "_unsent_bytes", "is_closed", "unsent")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, peer: str) -> None:
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._transport = transport
        self._loop = loop
        self._peer = peer
        self._unsent_bytes = 0
        self._flush_is_due = False
        self.unsent: Buffers = []
        """Replies that the transport does not have yet."""
        self.is_closed = False
        """Whether the connection is closed, by either side: nothing more is handled or sent."""

    def put_reply(self, reply: Buffers) -> None:
        """Queues one reply and writes its size in front. Flushes if too much is queued."""
        size = sum(map(len, reply))
        self.unsent.append(_SIZE.pack(size))
        self.unsent += reply
        self._unsent_bytes += size
        if self._unsent_bytes > WRITE_HIGH_WATER_BYTES:
            self.flush()

    def put_replies(self, replies: bytes) -> None:
        """Queues the replies of a run; each has its size in front."""
        self.unsent.append(replies)
        self._unsent_bytes += len(replies)
        if self._unsent_bytes > WRITE_HIGH_WATER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hands the queued replies to the transport. Aborts the connection if that fails; never raises."""
        self._flush_is_due = False
        unsent = self.unsent
        if not unsent or self.is_closed:
            return
        unsent_bytes = self._unsent_bytes
        self.unsent = []
        self._unsent_bytes = 0
        try:
            if unsent_bytes <= JOINED_BYTES_MAX:
                self._transport.write(b"".join(unsent))
            else:
                self._transport.writelines(unsent)
        except Exception as error:
            log.debug("peer %s disconnected during a response: %s", self._peer, error)
            self.abort()

    def flush_soon(self) -> None:
        """Flushes in the next iteration of the event loop, together with replies that are ready by then."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self.flush)

    def close(self) -> None:
        """Sends what was written and closes the connection."""
        self.flush()
        self.is_closed = True
        self._transport.close()

    def abort(self) -> None:
        """Closes the connection at once."""
        self.is_closed = True
        self._transport.abort()

    def on_lost(self) -> None:
        """Drops everything after the end of the connection."""
        self.is_closed = True
        self.unsent.clear()

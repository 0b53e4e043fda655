"""WAL as it comes: a replication stream on the event loop, which answers the server while it reads.

Between the server's bytes and the caller there is no thread and no queue: a synchronous commit waits for this path.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.connect.postgres_wal.failures import PostgresError, UnreachableError
from ottla.connect.postgres_wal.messages import Keepalive, ProtocolError, WalData, decode, status_update
from ottla.connect.postgres_wal.positions import Lsn, TimelineId, lsn_text, parse_lsn
from ottla.connect.postgres_wal.server import Server, quoted

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

# A stream that brings more than this at one go lets others have the loop first.
MESSAGES_A_TURN = 64


@dataclass(frozen=True, slots=True)
class NextTimeline:
    """The streamed timeline ended; the server's history goes on here."""

    timeline: TimelineId
    begin: Lsn


class WalStream:
    """Calls `on_messages` with what arrived at one go, once resumed; `report` tells the server how far WAL is safe.

    `ended` is a future: NextTimeline, None if the server ended the stream (it shuts down), or a PostgresError.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection: PGconn = server.connection
        self.on_messages: Callable[[list[WalData | Keepalive]], None] = lambda messages: None
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[NextTimeline | None] = self._loop.create_future()
        self._flushed = Lsn(0)
        self._reading = False

    async def start(self, slot: str, first: Lsn, timeline: TimelineId) -> None:
        """Raises RefusedError: the slot is in use, the WAL is gone, ..."""
        from psycopg import pq

        command = f"START_REPLICATION SLOT {quoted(slot)} PHYSICAL {lsn_text(first)} TIMELINE {timeline}"
        result = await asyncio.to_thread(self._connection.exec_, command.encode())
        if result.status == pq.ExecStatus.TUPLES_OK:  # the timeline ends where we asked to begin
            self.ended.set_result(_next_timeline(result.get_value(0, 0), result.get_value(0, 1)))
            return
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise self._server.failure(result)
        self._flushed = first
        self._connection.nonblocking = 1

    def pause(self) -> None:
        """Reads no more: the log has enough to do. The server is still told that we live."""
        if self._reading:
            self._loop.remove_reader(self._connection.socket)
            self._reading = False

    def resume(self) -> None:
        if not self._reading and not self.ended.done():
            self._loop.add_reader(self._connection.socket, self._readable)
            self._reading = True
            self._loop.call_soon(self._readable)  # libpq may have read more than it gave so far

    def report(self, flushed: Lsn) -> None:
        """Everything below is on the log's replicas. Without news it says that we live."""
        if self.ended.done():
            return
        self._flushed = max(self._flushed, flushed)
        self._send(status_update(self._flushed, time.time_ns() // 1000))

    def close(self) -> None:
        self.pause()
        if not self.ended.done():
            self.ended.cancel()

    def _send(self, message: bytes) -> None:
        from psycopg import OperationalError

        try:
            self._connection.put_copy_data(message)
            self._flush()
        except OperationalError as failure:
            self._fail(UnreachableError(f"the connection to the server is lost: {failure}"))

    def _flush(self) -> None:
        if self._connection.flush() and not self.ended.done():
            self._loop.add_writer(self._connection.socket, self._writable)

    def _writable(self) -> None:
        self._loop.remove_writer(self._connection.socket)
        self._flush()

    def _readable(self) -> None:
        from psycopg import OperationalError

        if not self._reading or self.ended.done():
            return
        messages: list[WalData | Keepalive] = []
        try:
            self._connection.consume_input()
            while len(messages) < MESSAGES_A_TURN:
                length, data = self._connection.get_copy_data(1)
                if length <= 0:
                    break
                messages.append(decode(data))
        except OperationalError as failure:
            self._fail(UnreachableError(" ".join(str(failure).split())))
            return
        except ProtocolError as failure:
            self._fail(PostgresError(str(failure)))
            return
        if messages:
            self.on_messages(messages)
        if length == -1:
            self._finish()
        elif length > 0:
            self._loop.call_soon(self._readable)

    def _finish(self) -> None:
        """The server ended the copy: at the end of a timeline, or because it shuts down."""
        self.pause()
        self._loop.create_task(self._read_end()).add_done_callback(self._ended_by)

    async def _read_end(self) -> NextTimeline | None:
        from psycopg import pq

        def finish() -> NextTimeline | None:
            self._connection.nonblocking = 0
            found: NextTimeline | None = None
            while (result := self._connection.get_result()) is not None:
                if result.status == pq.ExecStatus.COPY_IN:  # our half of the copy is open still
                    self._connection.put_copy_end()
                elif result.status == pq.ExecStatus.TUPLES_OK:
                    found = _next_timeline(result.get_value(0, 0), result.get_value(0, 1))
                elif result.status != pq.ExecStatus.COMMAND_OK:
                    raise self._server.failure(result)
            return found

        return await asyncio.to_thread(finish)

    def _ended_by(self, task: asyncio.Task[NextTimeline | None]) -> None:
        if self.ended.done():
            return
        failure = task.exception()
        if failure is not None:
            self.ended.set_exception(failure)
        else:
            self.ended.set_result(task.result())

    def _fail(self, failure: PostgresError) -> None:
        self.pause()
        if not self.ended.done():
            self.ended.set_exception(failure)


def _next_timeline(timeline: bytes | None, begin: bytes | None) -> NextTimeline:
    return NextTimeline(TimelineId(int(timeline or b"0")), parse_lsn((begin or b"").decode()))

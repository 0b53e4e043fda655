"""Copies WAL from the stream to the log, and reports the log's acknowledgements to the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ottla.connect.postgres.replication import Keepalive, WalData
from ottla.connect.postgres_wal.entries import Entry, Kind
from ottla.connect.postgres_wal.failures import PostgresError, RefusedError
from ottla.connect.postgres_wal.log_writer import LogWriter
from ottla.connect.postgres_wal.positions import Lsn, TimelineId, lsn_text
from ottla.connect.postgres_wal.server import Server, StreamEnd
from ottla.connect.postgres_wal.slot_bound import SlotWatch

ENTRY_BYTES_MAX = 512 << 10
PENDING_BYTES_MAX = 32 << 20
STATUS_INTERVAL_S = 1.0


class Pump:
    """Pumps one timeline of one stream. `flushed` is the LSN up to which the log has acknowledged everything."""

    def __init__(
        self,
        server: Server,
        writer: LogWriter,
        *,
        system_id: int,
        timeline: TimelineId,
        start: Lsn,
        watch: SlotWatch,
        news: Callable[[str], None],
    ) -> None:
        self._server = server
        self._writer = writer
        self._system_id = system_id
        self._timeline = timeline
        self._received = start
        self._server_end = start
        self._watch = watch
        self._news = news
        self._report_planned = False
        self._has_ended = False
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.flushed = start

    def facts(self) -> dict[str, str | int]:
        """Returns what `ottla connect status` shows."""
        behind_bytes = self._server_end - self.flushed
        return {"timeline": self._timeline, "position": lsn_text(self.flushed), "behind_bytes": behind_bytes}

    async def run(self) -> StreamEnd:
        """Runs until the stream ends; everything received is in the log when it returns.

        Raises PostgresError, or the error of the log.
        """
        self._writer.on_acknowledged = self._acknowledged
        receiving, telling = asyncio.create_task(self._receive()), asyncio.create_task(self._tell())
        try:
            ends: set[asyncio.Future[Any]] = {receiving, telling, self._writer.failed, self._broken}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in (self._writer.failed, self._broken, telling):
                if end.done():
                    end.result()
            return receiving.result()
        finally:
            for task in (receiving, telling):
                task.cancel()
            await asyncio.gather(receiving, telling, return_exceptions=True)
            self._broken.cancel()

    async def _receive(self) -> StreamEnd:
        while True:
            messages = await self._server.receive(STATUS_INTERVAL_S)
            if isinstance(messages, StreamEnd):
                self._has_ended = True  # later acknowledgements are reported on the next stream
                await self._writer.drain()
                return messages
            self._take(messages)
            if self._writer.pending_bytes > PENDING_BYTES_MAX:  # backpressure: the server keeps the rest
                await self._writer.wait_until_below(PENDING_BYTES_MAX // 2)

    def _take(self, messages: Sequence[WalData | Keepalive]) -> None:
        """Combines the messages of one receive into one entry, or a few if they are large."""
        parts: list[memoryview] = []
        start, size, sent_us, wants_reply = self._received, 0, 0, False
        for message in messages:
            self._server_end = max(self._server_end, Lsn(message.end_lsn))
            if isinstance(message, Keepalive):
                wants_reply = wants_reply or message.wants_reply
                continue
            self._check(Lsn(message.start_lsn))
            if size and size + len(message.data) > ENTRY_BYTES_MAX:
                self._put(start, sent_us, parts)
                parts, start, size = [], self._received, 0
            parts.append(message.data)
            size, sent_us = size + len(message.data), message.sent_us
            self._received = Lsn(self._received + len(message.data))
        if size:
            self._put(start, sent_us, parts)
        if wants_reply:
            self._server.report(self.flushed)

    def _check(self, start: Lsn) -> None:
        if start != self._received:
            raise RefusedError(f"the server sent WAL from {lsn_text(start)}, expected {lsn_text(self._received)}")

    def _put(self, start: Lsn, sent_us: int, parts: list[memoryview]) -> None:
        self._writer.put(Entry(Kind.WAL, self._system_id, self._timeline, start, sent_us, b"".join(parts)))

    def _acknowledged(self, end: Lsn) -> None:
        """Batches acknowledgements that arrive together into one message to the server."""
        self.flushed = end
        if not self._report_planned:
            self._report_planned = True
            asyncio.get_running_loop().call_soon(self._report)

    def _report(self) -> None:
        self._report_planned = False
        if self._broken.done() or self._has_ended:
            return
        try:
            self._server.report(self.flushed)
        except PostgresError as failure:
            self._broken.set_exception(failure)

    async def _tell(self) -> None:
        """Sends status updates, because the server times out silent connections, and lag warnings even when nothing
        moves."""
        while True:
            if not self._has_ended:
                self._server.report(self.flushed)
            warning = self._watch.warning(self._server_end - self.flushed)
            if warning is not None:
                self._news(warning)
            await asyncio.sleep(STATUS_INTERVAL_S)

"""From the stream into the log, and the log's acknowledgements back to the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ottla.connect.postgres_wal.entries import Entry, Kind
from ottla.connect.postgres_wal.failures import RefusedError
from ottla.connect.postgres_wal.log_writer import LogWriter
from ottla.connect.postgres_wal.messages import Keepalive, WalData
from ottla.connect.postgres_wal.positions import Lsn, TimelineId, lsn_text
from ottla.connect.postgres_wal.slot_bound import SlotWatch
from ottla.connect.postgres_wal.stream import NextTimeline, WalStream

ENTRY_BYTES_MAX = 512 << 10
PENDING_BYTES_HIGH, PENDING_BYTES_LOW = 32 << 20, 16 << 20
STATUS_INTERVAL_S = 1.0


class Pump:
    """One timeline of one stream. `flushed` is what the server may be told: the log has acknowledged all below it."""

    def __init__(
        self,
        stream: WalStream,
        writer: LogWriter,
        *,
        system_id: int,
        timeline: TimelineId,
        start: Lsn,
        watch: SlotWatch,
        news: Callable[[str], None],
    ) -> None:
        self._stream = stream
        self._writer = writer
        self._system_id = system_id
        self._timeline = timeline
        self._received = start
        self._server_end = start
        self._watch = watch
        self._news = news
        self._refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._report_planned = False
        self.flushed = start

    async def run(self) -> NextTimeline | None:
        """Until the stream ends, as WalStream.ended. What it brought is in the log when this returns."""
        self._writer.on_acknowledged = self._acknowledged
        self._stream.on_messages = self._take
        self._stream.resume()
        ticking = asyncio.create_task(self._tick())
        try:
            ends: set[asyncio.Future[Any]] = {self._stream.ended, self._writer.failed, self._refused, ticking}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in (self._refused, self._writer.failed, ticking):
                if end.done():
                    end.result()
            ended = self._stream.ended.result()
            await self._writer.drain()
            return ended
        finally:
            self._stream.pause()
            ticking.cancel()
            self._refused.cancel()

    def _take(self, messages: list[WalData | Keepalive]) -> None:
        wal: list[WalData] = []
        wants_reply = False
        for message in messages:
            self._server_end = max(self._server_end, message.server_end)
            if isinstance(message, WalData):
                wal.append(message)
            else:
                wants_reply = wants_reply or message.wants_reply
        self._store(wal)
        if wants_reply:
            self._stream.report(self.flushed)
        if self._writer.pending_bytes > PENDING_BYTES_HIGH:
            self._stream.pause()

    def _store(self, wal: list[WalData]) -> None:
        """What came at one go becomes one entry, or a few if it is much."""
        parts: list[memoryview] = []
        start, size, sent_us = self._received, 0, 0
        for piece in wal:
            if piece.start != self._received:
                self._refuse(piece.start)
                return
            if size and size + len(piece.data) > ENTRY_BYTES_MAX:
                self._put(start, sent_us, parts)
                parts, start, size = [], self._received, 0
            parts.append(piece.data)
            size += len(piece.data)
            sent_us = piece.sent_unix_us
            self._received = Lsn(piece.start + len(piece.data))
        if size:
            self._put(start, sent_us, parts)

    def _put(self, start: Lsn, sent_us: int, parts: list[memoryview]) -> None:
        self._writer.put(Entry(Kind.WAL, self._system_id, self._timeline, start, sent_us, b"".join(parts)))

    def _refuse(self, start: Lsn) -> None:
        if not self._refused.done():
            self._refused.set_exception(
                RefusedError(f"the server sent WAL of {lsn_text(start)} where {lsn_text(self._received)} comes next")
            )

    def _acknowledged(self, end: Lsn) -> None:
        """Acknowledgements that come together are one message to the server."""
        self.flushed = end
        if not self._report_planned:
            self._report_planned = True
            asyncio.get_running_loop().call_soon(self._report)
        if self._writer.pending_bytes < PENDING_BYTES_LOW:
            self._stream.resume()

    def _report(self) -> None:
        self._report_planned = False
        self._stream.report(self.flushed)

    async def _tick(self) -> None:
        """The server takes silence for death; and warnings come also while nothing moves."""
        while True:
            self._stream.report(self.flushed)
            warning = self._watch.warning(self._server_end - self.flushed)
            if warning is not None:
                self._news(warning)
            await asyncio.sleep(STATUS_INTERVAL_S)

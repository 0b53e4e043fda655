"""Pipelines appends to the log and tracks the end of the acknowledged prefix.

Each append states the offset at which it expects the log to end. So the log contains exactly the entries that were put,
without holes, even if an append fails or another writer appends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ottla.connect.log_ports import WritableLog
from ottla.connect.postgres_wal.entries import HEADER_BYTES, Entry
from ottla.connect.postgres_wal.failures import LogChangedError
from ottla.connect.postgres_wal.log_search import last_entry
from ottla.connect.postgres_wal.positions import Lsn
from ottla.connect.postgres_wal.receiver_plan import LogEnd


class LogWriter:
    """Appends entries to a log.

    `on_acknowledged` is called with the LSN up to which everything is durable. `failed` completes when an append is
    rejected.
    """

    def __init__(self, log: WritableLog, end_offset: int) -> None:
        self._log = log
        self._next_offset = end_offset
        self._waiting: deque[tuple[asyncio.Future[int], Entry]] = deque()
        self._room: tuple[int, asyncio.Future[None]] | None = None
        self.on_acknowledged: Callable[[Lsn], None] = lambda end: None
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pending_bytes = 0

    @classmethod
    async def begin(cls, log: WritableLog, expected: LogEnd | None) -> LogWriter:
        """Creates the writer for a log that was opened as its single writer.

        Raises LogChangedError if another writer appended to the log after `expected` was read.
        """
        tail = await log.tail()
        last = await last_entry(log)
        if (None if last is None else LogEnd.of(last.entry)) != expected:
            raise LogChangedError("another connector has just written to the log")
        return cls(log, tail.end_offset)

    def put(self, entry: Entry) -> None:
        """Appends an entry without waiting for its acknowledgement."""
        appended = self._log.append(entry.encode(), expected_end=self._next_offset)
        self._next_offset += 1
        self.pending_bytes += HEADER_BYTES + len(entry.data)
        self._waiting.append((appended, entry))
        appended.add_done_callback(self._done)

    def _done(self, _: asyncio.Future[int]) -> None:
        end: Lsn | None = None
        while self._waiting and self._waiting[0][0].done():
            appended, entry = self._waiting[0]
            failure = asyncio.CancelledError() if appended.cancelled() else appended.exception()
            if failure is not None:
                self._fail(failure)
                return
            self._waiting.popleft()
            self.pending_bytes -= HEADER_BYTES + len(entry.data)
            end = entry.end
        if end is not None and not self.failed.done():
            self.on_acknowledged(end)
        if self._room is not None and self.pending_bytes <= self._room[0] and not self._room[1].done():
            self._room[1].set_result(None)

    def _fail(self, failure: BaseException) -> None:
        """Records the first failure. The log keeps the order of appends, so it rejects all later ones too."""
        if not self.failed.done():
            self.failed.set_exception(failure)

    async def drain(self) -> None:
        """Waits until everything that was put is acknowledged."""
        await self.wait_until_below(0)

    async def wait_until_below(self, pending_bytes: int) -> None:
        """Waits until at most `pending_bytes` are unacknowledged. Raises the failure of an append."""
        if self.pending_bytes > pending_bytes:
            self._room = pending_bytes, asyncio.get_running_loop().create_future()
            await asyncio.wait({self._room[1], self.failed}, return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            self.failed.result()

    def close(self) -> None:
        """Stops tracking the appends, whose results no longer matter."""
        for appended, _ in self._waiting:
            appended.remove_done_callback(self._done)
            appended.add_done_callback(_forget)
        if self.failed.done():
            self.failed.exception()
        else:
            self.failed.cancel()


def _forget(appended: asyncio.Future[int]) -> None:
    if not appended.cancelled():
        appended.exception()

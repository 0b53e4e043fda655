"""Splits files and pipes into records without blocking the event loop.

The reading thread is a daemon, so that an interrupted command ends at once even while it waits for terminal input.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import AsyncIterator

BLOCK_BYTES = 1024 * 1024


class BlockReader:
    """Reads a file, pipe or terminal in a thread, one block per request."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._asked: queue.SimpleQueue[asyncio.Future[bytes] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ottla-reader", daemon=True).start()

    async def next_block(self) -> bytes:
        """Returns the next block, which is empty at the end of the input."""
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._asked.put(answer)
        return await answer

    def close(self) -> None:
        """Ends the thread after the pending requests."""
        self._asked.put(None)

    def _run(self) -> None:
        while (answer := self._asked.get()) is not None:
            block, failure = b"", None
            try:
                block = os.read(self._fd, BLOCK_BYTES)
            except OSError as cause:
                failure = cause
            with contextlib.suppress(RuntimeError):  # the event loop is closed, and nobody waits for the block
                self._loop.call_soon_threadsafe(self._deliver, answer, block, failure)

    @staticmethod
    def _deliver(answer: asyncio.Future[bytes], block: bytes, failure: OSError | None) -> None:
        if answer.done():
            return
        if failure is not None:
            answer.set_exception(failure)
        else:
            answer.set_result(block)


async def read_records(fd: int, delimiter: bytes | None) -> AsyncIterator[list[bytes]]:
    """Yields lists of records as they arrive, without delimiters. If `delimiter` is None, the input is one record.

    Data after the last delimiter is a record too. A carriage return before a line feed is part of the delimiter.
    """
    reader = BlockReader(fd)
    pieces: list[bytes] = []
    end = b""  # the last bytes of `pieces`, where a delimiter may begin
    try:
        while block := await reader.next_block():
            if delimiter is None or delimiter not in end + block:
                pieces.append(block)  # joined once the delimiter arrives, so that a long record takes linear time
                end = _end_of(end + block, delimiter)
                continue
            pieces.append(block)
            records = b"".join(pieces).split(delimiter)
            rest = records.pop()
            pieces, end = [rest], _end_of(rest, delimiter)
            yield _without_returns(records, delimiter)
    finally:
        reader.close()
    rest = b"".join(pieces)
    if rest or delimiter is None:
        yield _without_returns([rest], delimiter)


def _end_of(data: bytes, delimiter: bytes | None) -> bytes:
    return b"" if delimiter is None or len(delimiter) == 1 else data[1 - len(delimiter) :]


def _without_returns(records: list[bytes], delimiter: bytes | None) -> list[bytes]:
    return [each.removesuffix(b"\r") for each in records] if delimiter == b"\n" else records

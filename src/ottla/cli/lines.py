"""Cuts files and pipes into lines without blocking the event loop.

The thread that reads is a daemon: a command that is interrupted ends at once, even while a terminal's next line is
still to be typed.
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
    """Reads a block of a file, pipe or terminal when it is asked for one."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._asked: queue.SimpleQueue[asyncio.Future[bytes] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ottla-reader", daemon=True).start()

    async def next_block(self) -> bytes:
        """Empty at the end."""
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._asked.put(answer)
        return await answer

    def close(self) -> None:
        self._asked.put(None)

    def _run(self) -> None:
        while (answer := self._asked.get()) is not None:
            block, failure = b"", None
            try:
                block = os.read(self._fd, BLOCK_BYTES)
            except OSError as cause:
                failure = cause
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
                self._loop.call_soon_threadsafe(self._deliver, answer, block, failure)

    @staticmethod
    def _deliver(answer: asyncio.Future[bytes], block: bytes, failure: OSError | None) -> None:
        if answer.done():
            return
        if failure is not None:
            answer.set_exception(failure)
        else:
            answer.set_result(block)


async def read_lines(fd: int) -> AsyncIterator[list[bytes]]:
    """Lists of lines as they arrive, without their line ends. What follows the last line end is a line too."""
    reader = BlockReader(fd)
    pieces: list[bytes] = []
    try:
        while block := await reader.next_block():
            head, separator, tail = block.rpartition(b"\n")
            if not separator:
                pieces.append(block)  # joined once, when the line's end is there: a long line costs no more for it
                continue
            pieces.append(head)
            lines = b"".join(pieces).split(b"\n")
            pieces = [tail]
            yield [line.removesuffix(b"\r") for line in lines]
    finally:
        reader.close()
    if rest := b"".join(pieces):
        yield [rest.removesuffix(b"\r")]

"""Cuts files and pipes into lines without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

BLOCK_BYTES = 1024 * 1024


async def read_lines(fd: int) -> AsyncIterator[list[bytes]]:
    """Lists of lines as they arrive, without their line ends. What follows the last line end is a line too."""
    loop = asyncio.get_running_loop()
    rest = b""
    while True:
        block = await loop.run_in_executor(None, os.read, fd, BLOCK_BYTES)
        if not block:
            break
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest.removesuffix(b"\r")]

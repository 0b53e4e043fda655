"""A worker process that reads ranges of a log and reduces them. `workers` starts it through `main`.

The worker receives the log and the ranges on standard input and answers with pieces on standard output. Both directions
are pickled, because both ends run the same program. The worker ends when its input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import struct
import sys
import time
from typing import Any, BinaryIO, NamedTuple

from ottla.recovery.logs import ReadableLog, columns_of
from ottla.recovery.points import Point
from ottla.recovery.reducer import ReducedPart, Reducer

PROGRESS_S = 0.1
FRAME = struct.Struct("<Q")


class Range(NamedTuple):
    """A request: reduce the log from `first` up to `until` (exclusive), but not past `point`."""

    first: int
    until: int
    point: Point


class RangeProgress(NamedTuple):
    """How much of the range was read, though not necessarily applied yet."""

    offset_count: int
    entry_count: int


class RangeFailure(NamedTuple):
    """The reason why the range cannot be read further."""

    next_offset: int
    why: str


class RangeEnd(NamedTuple):
    """All pieces of the range were sent."""

    read: RangeProgress


def write_frame(to: BinaryIO, message: object) -> None:
    """Writes one pickled message with its length in front."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    to.write(FRAME.pack(len(body)))
    to.write(body)
    to.flush()


def read_frame(source: BinaryIO) -> Any:
    """Reads one message. Returns None at the end of the input."""
    head = source.read(FRAME.size)
    return pickle.loads(source.read(FRAME.unpack(head)[0])) if len(head) == FRAME.size else None


class Worker:
    """Reduces ranges of one log and writes the pieces to `output`."""

    def __init__(self, log: ReadableLog, output: BinaryIO) -> None:
        self._log = log
        self._output = output

    async def reduce(self, asked: Range) -> None:
        """Sends all pieces of a range followed by `RangeEnd`, or `RangeFailure` if the log cannot be read."""
        reducer = Reducer(asked.first, asked.point)
        next_offset, entry_count, told_s = asked.first, 0, time.monotonic()
        try:
            async for columns in columns_of(self._log, asked.first, asked.until):
                reducer.feed(columns)
                await self._send(*reducer.take_pieces())
                if columns.offsets:
                    next_offset = columns.offsets[-1] + 1
                    entry_count += len(columns.offsets)
                if time.monotonic() - told_s > PROGRESS_S:
                    told_s = time.monotonic()
                    await self._send(RangeProgress(next_offset - asked.first, entry_count))
                if reducer.is_done:
                    break
        except Exception as error:
            await self._send(RangeFailure(next_offset, f"{type(error).__name__}: {error}"))
            return
        reducer.end()
        await self._send(*reducer.take_pieces(), RangeEnd(RangeProgress(asked.until - asked.first, entry_count)))

    async def _send(self, *messages: ReducedPart | RangeProgress | RangeFailure | RangeEnd) -> None:
        """Sends messages and blocks while the pipe is full, which bounds the memory of the worker."""
        for message in messages:
            await asyncio.to_thread(write_frame, self._output, message)


async def work(source: BinaryIO, output: BinaryIO) -> None:
    """Serves requests from `source` until it ends."""
    sys.path[:0] = [path for path in read_frame(source) if path not in sys.path]
    try:
        worker = Worker(read_frame(source), output)
    except Exception as error:
        write_frame(output, RangeFailure(0, f"the log cannot be opened in a worker: {type(error).__name__}: {error}"))
        return
    while (asked := await asyncio.to_thread(read_frame, source)) is not None:
        await worker.reduce(asked)


def main() -> None:
    """Runs the worker on standard input and output."""
    # Redirect prints to standard error: this pipe carries only pieces.
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    try:
        asyncio.run(work(sys.stdin.buffer, output))
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)  # the parent process is gone

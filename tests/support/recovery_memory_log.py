"""An in-memory log with the methods of `ottla.wal.Log`: fenced writers, futures, trim. It can be told to fail."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Entry(NamedTuple):
    offset: int
    data: bytes
    timestamp_ms: int


class Tail(NamedTuple):
    start_offset: int
    end_offset: int
    epoch: int


class Fenced(Exception):  # noqa: N818 - short for a test
    pass


@dataclass
class Shared:
    """The state that all handles of one log share."""

    entries: list[Entry] = field(default_factory=list)
    start_offset: int = 0
    epoch: int = 0
    now_ms: int = 1000
    grown: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, data: bytes) -> int:
        offset = self.entries[-1].offset + 1 if self.entries else self.start_offset
        self.entries.append(Entry(offset, data, self.now_ms))
        self.now_ms += 1
        self.grown.set()
        return offset


class MemoryLog:
    def __init__(self, shared: Shared, *, fence: bool = False, chunk: int = 7) -> None:
        self._shared = shared
        self._chunk = chunk
        self.epoch: int | None = None
        self.fails_with: Exception | None = None
        if fence:
            shared.epoch += 1
            self.epoch = shared.epoch

    async def tail(self) -> Tail:
        entries = self._shared.entries
        end = entries[-1].offset + 1 if entries else self._shared.start_offset
        return Tail(self._shared.start_offset, end, self._shared.epoch)

    async def read_chunks(self, first: int, until: int | None = None) -> AsyncIterator[Sequence[Entry]]:
        assert first >= self._shared.start_offset, "the reader asks for what is gone"
        asked = [e for e in self._shared.entries if e.offset >= first and (until is None or e.offset < until)]
        for start in range(0, len(asked), self._chunk):
            await asyncio.sleep(0)
            yield asked[start : start + self._chunk]

    async def follow(self, first: int) -> AsyncIterator[Entry]:
        while True:
            if self.fails_with is not None:
                raise self.fails_with
            for entry in [each for each in self._shared.entries if each.offset >= first]:
                first = entry.offset + 1
                yield entry
            self._shared.grown.clear()
            await self._shared.grown.wait()

    def append(self, data: bytes, /) -> Future[int]:
        """Appends; the record is acknowledged one iteration of the event loop later, in order."""
        loop = asyncio.get_running_loop()
        future: Future[int] = loop.create_future()
        if self.fails_with is not None:
            loop.call_soon(future.set_exception, self.fails_with)
        elif self.epoch != self._shared.epoch:
            loop.call_soon(future.set_exception, Fenced(f"epoch {self.epoch} is over"))
        else:
            loop.call_soon(future.set_result, self._shared.add(data))
        return future

    async def ready(self) -> None:
        await asyncio.sleep(0)

    async def trim(self, before: int) -> None:
        self._shared.start_offset = before
        self._shared.entries[:] = [each for each in self._shared.entries if each.offset >= before]

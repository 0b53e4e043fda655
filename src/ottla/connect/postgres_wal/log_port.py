"""The part of `ottla.wal.Log` that this package uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol


class Record(Protocol):
    @property
    def offset(self) -> int: ...
    @property
    def data(self) -> bytes: ...


class LogBounds(Protocol):
    """The offsets at which a log begins and ends."""

    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...


class ReadableLog(Protocol):
    async def tail(self) -> LogBounds: ...
    def read_chunks(self, first: int, until: int | None = None) -> AsyncIterator[Sequence[Record]]: ...


class WritableLog(ReadableLog, Protocol):
    def append(self, data: bytes, *, expected_end: int | None = None) -> asyncio.Future[int]: ...
    async def trim(self, before: int) -> int: ...

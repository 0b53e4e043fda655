"""The parts of `ottla.wal.Log` and `ottla.wal.SyncLog` that connectors use.

A restore reads a log, its archive, or both: see `archived_log`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Protocol

from ottla.wal import Entry, Tail


class ReadableLog(Protocol):
    """A log to read, for asyncio."""

    async def tail(self) -> Tail: ...
    def read_chunks(self, first: int, until: int | None = None) -> AsyncIterator[Sequence[Entry]]: ...


class WritableLog(ReadableLog, Protocol):
    """A log with a single writer, for asyncio."""

    def append(self, data: bytes, *, expected_end: int | None = None) -> asyncio.Future[int]: ...
    async def trim(self, before: int) -> int: ...


class SyncReadableLog(Protocol):
    """A log to read, for threads."""

    def tail(self) -> Tail: ...
    def read_chunks(self, first: int, until: int | None = None) -> Iterator[list[Entry]]: ...


class SyncWritableLog(SyncReadableLog, Protocol):
    """A log with a single writer, for threads."""

    def append_many(self, data: Iterable[bytes], *, expected_end: int | None = None) -> range: ...
    def trim(self, before: int) -> int: ...

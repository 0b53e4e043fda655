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

    async def tail(self) -> Tail:
        """Returns the start and the committed end of the log, and its writer epoch."""
        ...

    def read_chunks(self, first: int, until: int | None = None) -> AsyncIterator[Sequence[Entry]]:
        """Yields the entries from `first` up to `until` (exclusive), or up to the current end, in lists."""
        ...


class WritableLog(ReadableLog, Protocol):
    """A log with a single writer, for asyncio."""

    def append(self, data: bytes, *, expected_end: int | None = None) -> asyncio.Future[int]:
        """Appends one record. The future resolves to its offset; it fails if the log does not end at `expected_end`."""
        ...

    async def trim(self, before: int) -> int: ...


class SyncReadableLog(Protocol):
    """A log to read, for threads."""

    def tail(self) -> Tail:
        """Returns the start and the committed end of the log, and its writer epoch."""
        ...

    def read_chunks(self, first: int, until: int | None = None) -> Iterator[list[Entry]]:
        """Yields the entries from `first` up to `until` (exclusive), or up to the current end, in lists."""
        ...


class SyncWritableLog(SyncReadableLog, Protocol):
    """A log with a single writer, for threads."""

    def append_many(self, data: Iterable[bytes], *, expected_end: int | None = None) -> range:
        """Appends all records atomically and returns their offsets. Fails if the end is not `expected_end`."""
        ...

    def trim(self, before: int) -> int: ...

"""The interface of a log to recover from: an `ottla.wal.Log`, a `KafkaLog`, or any object with these methods."""

from __future__ import annotations

from asyncio import Future
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class LogEntry(Protocol):
    """One committed record of a log."""

    @property
    def offset(self) -> int:
        """The position in the log. Offsets increase but may have gaps."""
        ...

    @property
    def data(self) -> bytes:
        """The bytes that were appended."""
        ...

    @property
    def timestamp_ms(self) -> int:
        """The timestamp of the record, in milliseconds since the Unix epoch."""
        ...


class LogTail(Protocol):
    """The offsets at which a log starts and ends."""

    @property
    def start_offset(self) -> int:
        """The offset of the first record that still exists."""
        ...

    @property
    def end_offset(self) -> int:
        """The offset after the last committed record."""
        ...


class ReadableLog(Protocol):
    """A log that can be read from any offset and followed.

    Example:

        tail = await log.tail()
        async for entries in log.read_chunks(tail.start_offset):
            ...
    """

    async def tail(self) -> LogTail:
        """Returns the current start and end of the log."""
        ...

    def read_chunks(self, first: int, until: int | None = None) -> AsyncIterator[Sequence[LogEntry]]:
        """Yields lists of entries up to `until` (exclusive) or up to the current end. Offsets may have gaps."""
        ...

    def follow(self, first: int) -> AsyncIterator[LogEntry]:
        """Yields entries from `first` on and waits for new ones. Never ends on its own."""
        ...


class WritableLog(ReadableLog, Protocol):
    """A log with a single writer: after another writer opens the log, every append of this one is fenced."""

    @property
    def epoch(self) -> int | None:
        """The epoch of this writer, or None if it has not fenced the log."""
        ...

    async def ready(self) -> None:
        """Waits until there is room for another append."""
        ...

    def append(self, data: bytes, /) -> Future[int]:
        """Returns a future of the offset, set once the entry is committed. The order of calls is the log order."""
        ...

    async def trim(self, before: int) -> object:
        """Deletes the entries before this offset."""
        ...


class Columns(NamedTuple):
    """Consecutive entries as columns, because a loop over lists is cheaper than a loop over objects."""

    offsets: Sequence[int]
    timestamps_ms: Sequence[int]
    data: Sequence[bytes]

    @classmethod
    def of(cls, entries: Sequence[LogEntry]) -> Columns:
        """Converts a list of entries."""
        return cls(
            [each.offset for each in entries], [each.timestamp_ms for each in entries], [e.data for e in entries]
        )

    def since(self, index: int) -> Columns:
        """Returns the entries from this index on."""
        return Columns(self.offsets[index:], self.timestamps_ms[index:], self.data[index:])

    def before(self, count: int) -> Columns:
        """Returns the first `count` entries."""
        return Columns(self.offsets[:count], self.timestamps_ms[:count], self.data[:count])


@runtime_checkable
class ColumnLog(Protocol):
    """A log with a native way to read columns."""

    def read_columns(self, first: int, until: int | None = None) -> AsyncIterator[Columns]:
        """Yields columns up to `until` (exclusive) or up to the current end."""
        ...


@runtime_checkable
class ChunkLog(Protocol):
    """A log that delivers new entries in lists."""

    def follow_chunks(self, first: int) -> AsyncIterator[Sequence[LogEntry]]:
        """Yields lists of entries from `first` on and waits for new ones. Never ends on its own."""
        ...


async def news_of(log: ReadableLog, first: int) -> AsyncIterator[Columns]:
    """Yields the entries from `first` on, then new ones as they arrive. Never ends on its own."""
    if isinstance(log, ChunkLog):
        async for entries in log.follow_chunks(first):
            yield Columns.of(entries)
        return
    async for entry in log.follow(first):
        yield Columns.of([entry])


async def columns_of(log: ReadableLog, first: int, until: int) -> AsyncIterator[Columns]:
    """Yields the entries as columns, by the fastest method that the log offers."""
    if isinstance(log, ColumnLog):
        async for columns in log.read_columns(first, until):
            yield columns
        return
    async for entries in log.read_chunks(first, until):
        if entries:
            yield Columns.of(entries)

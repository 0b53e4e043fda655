"""What recovery needs of a log: `ottla.wal.Log`, `KafkaLog`, or any object with these methods."""

from __future__ import annotations

from asyncio import Future
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class LogEntry(Protocol):
    @property
    def offset(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    @property
    def timestamp_ms(self) -> int: ...


class LogTail(Protocol):
    @property
    def start_offset(self) -> int:
        """Of the first record that is there."""
        ...

    @property
    def end_offset(self) -> int:
        """After the last one that is committed."""
        ...


class ReadableLog(Protocol):
    async def tail(self) -> LogTail: ...

    def read_chunks(self, first: int, until: int | None = None) -> AsyncIterator[Sequence[LogEntry]]:
        """Up to `until` (exclusive), or to the end as of now. Offsets may have gaps."""
        ...

    def follow(self, first: int) -> AsyncIterator[LogEntry]:
        """Never ends by itself."""
        ...


class WritableLog(ReadableLog, Protocol):
    """Its writer is fenced: after another one has opened the log, every append fails."""

    @property
    def epoch(self) -> int | None: ...

    async def ready(self) -> None:
        """Until there is room for another append."""
        ...

    def append(self, data: bytes, /) -> Future[int]:
        """The offset, when it is committed. The order of calls is the order in the log."""
        ...

    async def trim(self, before: int) -> object: ...


class Columns(NamedTuple):
    """Entries that follow one another, by column: a loop over lists costs less than one over objects."""

    offsets: Sequence[int]
    timestamps_ms: Sequence[int]
    data: Sequence[bytes]

    @classmethod
    def of(cls, entries: Sequence[LogEntry]) -> Columns:
        return cls(
            [each.offset for each in entries], [each.timestamp_ms for each in entries], [e.data for e in entries]
        )

    def since(self, index: int) -> Columns:
        return Columns(self.offsets[index:], self.timestamps_ms[index:], self.data[index:])

    def before(self, count: int) -> Columns:
        return Columns(self.offsets[:count], self.timestamps_ms[:count], self.data[:count])


@runtime_checkable
class ColumnLog(Protocol):
    """A log that reads columns by itself."""

    def read_columns(self, first: int, until: int | None = None) -> AsyncIterator[Columns]: ...


@runtime_checkable
class ChunkLog(Protocol):
    """A log that tells of news in lists."""

    def follow_chunks(self, first: int) -> AsyncIterator[Sequence[LogEntry]]: ...


async def news_of(log: ReadableLog, first: int) -> AsyncIterator[Columns]:
    """What is there from `first` on, and what comes. Never ends by itself."""
    if isinstance(log, ChunkLog):
        async for entries in log.follow_chunks(first):
            yield Columns.of(entries)
        return
    async for entry in log.follow(first):
        yield Columns.of([entry])


async def columns_of(log: ReadableLog, first: int, until: int) -> AsyncIterator[Columns]:
    """The fastest way that the log has."""
    if isinstance(log, ColumnLog):
        async for columns in log.read_columns(first, until):
            yield columns
        return
    async for entries in log.read_chunks(first, until):
        if entries:
            yield Columns.of(entries)

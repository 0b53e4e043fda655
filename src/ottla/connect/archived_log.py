"""A log whose beginning retention has removed, together with the archive that has it (`ottla pipeline archive`).

What the archive has is read from there, the rest from the live log; together they have no gap, or whoever opens them
hears which offsets are in neither. Where the log is gone with its brokers, the archive alone is what there is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from typing import cast

from ottla.connect.failures import NeedsHelpError
from ottla.spark.jobs.archived_records import ArchivedRecords, PipelineError
from ottla.wal import Entry, Log, SyncLog, Tail

NO_WRITER = 0


class ArchiveError(NeedsHelpError):
    """The archive is not there, is damaged, or does not belong to the log. The message says which offsets."""


@dataclass(frozen=True, slots=True)
class ArchivedPart:
    """What is read from the archive: offsets from `start` up to `end`, without a gap; the live log goes on there."""

    archive: ArchivedRecords
    start: int
    end: int
    note: str | None
    """What else the archive has, and why it is of no use."""

    @classmethod
    def of(cls, archive: ArchivedRecords, live: Tail) -> ArchivedPart:
        """ArchiveError if offsets are missing between the archive and the live log, which was asked after it."""
        place, topic, last = archive.place, archive.topic, archive.ranges[-1]
        if last.end < live.start_offset:
            raise ArchiveError(
                f"the archive {place} has {topic} up to offset {last.end - 1}, and the log begins with "
                f"{live.start_offset}: offsets {last.end}-{live.start_offset - 1} are in neither. What is after them "
                "can be restored without --archive"
            )
        if last.end > live.end_offset:
            raise ArchiveError(
                f"the archive {place} has {topic} up to offset {last.end - 1}, and the log ends before that, with "
                f"{live.end_offset - 1}: it is the archive of another log of this name"
            )
        if last.start > live.start_offset:  # it was begun late: the log has all that it has, and more
            return cls(archive, live.start_offset, live.start_offset, None)
        return cls.alone(archive)

    @classmethod
    def alone(cls, archive: ArchivedRecords) -> ArchivedPart:
        """What it has to its end, without a gap."""
        note = None
        if archive.gaps:
            missing = ", ".join(str(each) for each in archive.gaps)
            lacking = f"the archive {archive.place} lacks offsets {missing} of {archive.topic}"
            note = f"{lacking}: what is before them is of no use"
        return cls(archive, archive.ranges[-1].start, archive.ranges[-1].end, note)

    @property
    def tail(self) -> Tail:
        """As if the log ended where the archive does."""
        return Tail(self.start, self.end, NO_WRITER)

    def read(self, first: int, until: int) -> Iterator[list[Entry]]:
        with _in_words():
            for chunk in self.archive.read(first, min(until, self.end)):
                yield [Entry(each.offset, each.value, each.timestamp_ms) for each in chunk]

    async def read_in_thread(self, first: int, until: int) -> AsyncIterator[list[Entry]]:
        chunks = self.read(first, until)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield chunk

    def check_same(self, live: Entry) -> None:
        """A record that both have. ArchiveError if they differ."""
        found = [entry for chunk in self.read(live.offset, live.offset + 1) for entry in chunk]
        if not found or found[0].data != live.data:
            raise ArchiveError(
                f"what the archive {self.archive.place} has at offset {live.offset} is not what the log has there: it "
                "is the archive of another log of this name"
            )


class LoneArchive:
    """For asyncio: an archive whose log is gone."""

    def __init__(self, part: ArchivedPart) -> None:
        self.part = part

    @classmethod
    async def of(cls, place: str, topic: str) -> LoneArchive:
        return cls(ArchivedPart.alone(await asyncio.to_thread(_open, place, topic)))

    async def tail(self) -> Tail:
        return self.part.tail

    async def read_chunks(self, first: int, until: int | None = None) -> AsyncIterator[list[Entry]]:
        async for chunk in self.part.read_in_thread(first, self.part.end if until is None else until):
            yield chunk


class SyncLoneArchive:
    """The same for threads."""

    def __init__(self, place: str, topic: str) -> None:
        self.part = ArchivedPart.alone(_open(place, topic))

    def tail(self) -> Tail:
        return self.part.tail

    def read_chunks(self, first: int, until: int | None = None) -> Iterator[list[Entry]]:
        return self.part.read(first, self.part.end if until is None else until)


class ArchivedLog:
    """For asyncio: a log as those see it who only read."""

    def __init__(self, live: Log, part: ArchivedPart) -> None:
        self._live = live
        self.part = part

    @classmethod
    async def of(cls, live: Log, place: str, topic: str) -> ArchivedLog:
        archive = await asyncio.to_thread(_open, place, topic)
        tail = await live.tail()
        part = ArchivedPart.of(archive, tail)
        async with _closing(live.read_chunks(tail.start_offset, max(tail.start_offset, part.end))) as chunks:
            async for chunk in chunks:
                await asyncio.to_thread(part.check_same, chunk[0])
                break
        return cls(live, part)

    async def tail(self) -> Tail:
        return _joined(await self._live.tail(), self.part)

    async def read_chunks(self, first: int, until: int | None = None) -> AsyncIterator[list[Entry]]:
        end = (await self._live.tail()).end_offset if until is None else until
        if first < self.part.end:
            async for chunk in self.part.read_in_thread(first, end):
                yield chunk
        if end > self.part.end:
            async with _closing(self._live.read_chunks(max(first, self.part.end), end)) as following:
                async for chunk in following:
                    yield chunk


class SyncArchivedLog:
    """The same for threads."""

    def __init__(self, live: SyncLog, place: str, topic: str) -> None:
        self._live = live
        archive = _open(place, topic)
        tail = live.tail()
        self.part = ArchivedPart.of(archive, tail)
        found = live.read_chunks(tail.start_offset, max(tail.start_offset, self.part.end))
        with contextlib.closing(cast("Generator[list[Entry], None, None]", found)) as chunks:
            for chunk in chunks:
                self.part.check_same(chunk[0])
                break

    def tail(self) -> Tail:
        return _joined(self._live.tail(), self.part)

    def read_chunks(self, first: int, until: int | None = None) -> Iterator[list[Entry]]:
        end = self._live.tail().end_offset if until is None else until
        if first < self.part.end:
            yield from self.part.read(first, end)
        if end > self.part.end:
            yield from self._live.read_chunks(max(first, self.part.end), end)


def _open(place: str, topic: str) -> ArchivedRecords:
    with _in_words():
        return ArchivedRecords(place, topic)


def _closing(chunks: AsyncIterator[list[Entry]]) -> contextlib.aclosing[AsyncGenerator[list[Entry], None]]:
    """A reading that is left early is a call to a broker still; closing it ends the call."""
    return contextlib.aclosing(cast("AsyncGenerator[list[Entry], None]", chunks))


def _joined(live: Tail, part: ArchivedPart) -> Tail:
    return live._replace(start_offset=min(part.start, live.start_offset))


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except PipelineError as failure:
        raise ArchiveError(str(failure)) from failure

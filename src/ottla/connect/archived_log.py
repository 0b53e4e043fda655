"""A log combined with its archive (`ottla pipeline archive`), for logs whose oldest records retention has deleted.

Archived offsets are read from the archive and all later ones from the live log. Opening the pair fails with a list of
the missing offsets if there is a gap between the two. If the log was lost together with its brokers, the archive can be
read alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from typing import cast

from ottla.archive.records import ArchivedRecords, PipelineError
from ottla.connect.failures import NeedsHelpError
from ottla.wal import Entry, Log, SyncLog, Tail

NO_WRITER = 0


class ArchiveError(NeedsHelpError):
    """The archive is missing, is damaged, or belongs to another log. The message names the offsets."""


@dataclass(frozen=True, slots=True)
class ArchivedPart:
    """The gapless range of offsets, `start` to `end` (exclusive), that is read from the archive.

    The live log continues at `end`.
    """

    archive: ArchivedRecords
    start: int
    end: int
    note: str | None
    """Describes archived offsets that cannot be used, and why; None if there are none."""

    @classmethod
    def of(cls, archive: ArchivedRecords, live: Tail) -> ArchivedPart:
        """Joins an archive to the live log. `live` must have been read after the archive was opened.

        Raises ArchiveError if offsets are missing between the two.
        """
        place, topic, last = archive.place, archive.topic, archive.ranges[-1]
        if last.end < live.start_offset:
            raise ArchiveError(
                f"the archive {place} has {topic} up to offset {last.end - 1}, but the log starts at "
                f"{live.start_offset}: offsets {last.end}-{live.start_offset - 1} are in neither. The records "
                "after them can be restored without --archive"
            )
        if last.end > live.end_offset:
            raise ArchiveError(
                f"the archive {place} has {topic} up to offset {last.end - 1}, but the log ends before that, "
                f"at {live.end_offset - 1}: the archive belongs to another log of this name"
            )
        # The archive was started late: the log has everything the archive has, and more.
        if last.start > live.start_offset:
            return cls(archive, live.start_offset, live.start_offset, None)
        return cls.alone(archive)

    @classmethod
    def alone(cls, archive: ArchivedRecords) -> ArchivedPart:
        """Uses the last gapless range of the archive, without a live log."""
        note = None
        if archive.gaps:
            missing = ", ".join(str(each) for each in archive.gaps)
            lacking = f"the archive {archive.place} lacks offsets {missing} of {archive.topic}"
            note = f"{lacking}; the records before them cannot be used"
        return cls(archive, archive.ranges[-1].start, archive.ranges[-1].end, note)

    @property
    def tail(self) -> Tail:
        """The tail that the log would have if it ended where the archive does."""
        return Tail(self.start, self.end, NO_WRITER)

    def read(self, first: int, until: int) -> Iterator[list[Entry]]:
        """Yields the archived entries from `first` up to `until` (exclusive), in chunks."""
        with _in_words():
            for chunk in self.archive.read(first, min(until, self.end)):
                yield [Entry(each.offset, each.value, each.timestamp_ms) for each in chunk]

    async def read_in_thread(self, first: int, until: int) -> AsyncIterator[list[Entry]]:
        """Reads like `read`, without blocking the event loop."""
        chunks = self.read(first, until)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield chunk

    def check_same(self, live: Entry) -> None:
        """Compares a record of the live log with the archived record at the same offset.

        Raises ArchiveError if they differ.
        """
        found = [entry for chunk in self.read(live.offset, live.offset + 1) for entry in chunk]
        if not found or found[0].data != live.data:
            raise ArchiveError(
                f"the records of the archive {self.archive.place} and of the log at offset {live.offset} "
                "differ: the archive belongs to another log of this name"
            )


class ArchiveOnlyLog:
    """An archive whose log is lost, for asyncio."""

    def __init__(self, part: ArchivedPart) -> None:
        self.part = part

    @classmethod
    async def of(cls, place: str, topic: str) -> ArchiveOnlyLog:
        """Opens the archive of a topic and uses its last gapless range."""
        return cls(ArchivedPart.alone(await asyncio.to_thread(_open, place, topic)))

    async def tail(self) -> Tail:
        """Returns the bounds of the archived range."""
        return self.part.tail

    async def read_chunks(self, first: int, until: int | None = None) -> AsyncIterator[list[Entry]]:
        """Yields archived entries up to `until` (exclusive) or the end of the archive, read in a thread."""
        async for chunk in self.part.read_in_thread(first, self.part.end if until is None else until):
            yield chunk


class SyncArchiveOnlyLog:
    """An archive whose log is lost, for threads."""

    def __init__(self, place: str, topic: str) -> None:
        self.part = ArchivedPart.alone(_open(place, topic))

    def tail(self) -> Tail:
        """Returns the bounds of the archived range."""
        return self.part.tail

    def read_chunks(self, first: int, until: int | None = None) -> Iterator[list[Entry]]:
        """Yields archived entries up to `until` (exclusive) or the end of the archive."""
        return self.part.read(first, self.part.end if until is None else until)


class ArchivedLog:
    """A read-only view of a live log and its archive, for asyncio."""

    def __init__(self, live: Log, part: ArchivedPart) -> None:
        self._live = live
        self.part = part

    @classmethod
    async def of(cls, live: Log, place: str, topic: str) -> ArchivedLog:
        """Opens the archive and joins it to the live log. Raises ArchiveError if they leave a gap or do not match."""
        archive = await asyncio.to_thread(_open, place, topic)
        tail = await live.tail()
        part = ArchivedPart.of(archive, tail)
        async with _closing(live.read_chunks(tail.start_offset, max(tail.start_offset, part.end))) as chunks:
            async for chunk in chunks:
                await asyncio.to_thread(part.check_same, chunk[0])
                break
        return cls(live, part)

    async def tail(self) -> Tail:
        """Returns the live log's tail, with the start of the archive if that is earlier."""
        return _joined(await self._live.tail(), self.part)

    async def read_chunks(self, first: int, until: int | None = None) -> AsyncIterator[list[Entry]]:
        """Yields entries from the archive, then from the live log, up to `until` (exclusive) or the end."""
        end = (await self._live.tail()).end_offset if until is None else until
        if first < self.part.end:
            async for chunk in self.part.read_in_thread(first, end):
                yield chunk
        if end > self.part.end:
            async with _closing(self._live.read_chunks(max(first, self.part.end), end)) as following:
                async for chunk in following:
                    yield chunk


class SyncArchivedLog:
    """A read-only view of a live log and its archive, for threads."""

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
        """Returns the live log's tail, with the start of the archive if that is earlier."""
        return _joined(self._live.tail(), self.part)

    def read_chunks(self, first: int, until: int | None = None) -> Iterator[list[Entry]]:
        """Yields entries from the archive, then from the live log, up to `until` (exclusive) or the end."""
        end = self._live.tail().end_offset if until is None else until
        if first < self.part.end:
            yield from self.part.read(first, end)
        if end > self.part.end:
            yield from self._live.read_chunks(max(first, self.part.end), end)


def _open(place: str, topic: str) -> ArchivedRecords:
    with _in_words():
        return ArchivedRecords(place, topic)


def _closing(chunks: AsyncIterator[list[Entry]]) -> contextlib.aclosing[AsyncGenerator[list[Entry], None]]:
    """Closes an iterator that is abandoned early, which ends its outstanding call to the broker."""
    return contextlib.aclosing(cast("AsyncGenerator[list[Entry], None]", chunks))


def _joined(live: Tail, part: ArchivedPart) -> Tail:
    return live._replace(start_offset=min(part.start, live.start_offset))


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    """Converts PipelineError to ArchiveError."""
    try:
        yield
    except PipelineError as failure:
        raise ArchiveError(str(failure)) from failure

"""An in-memory log of PostgreSQL's WAL, for tests of the pure parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from ottla.connect.postgres_wal.entries import Entry, Kind
from ottla.connect.postgres_wal.positions import Lsn, TimelineId
from ottla.wal import Entry as Record
from ottla.wal import Tail

ONE, TWO, THREE = TimelineId(1), TimelineId(2), TimelineId(3)


@dataclass
class MemoryLog:
    """A log with holes: offsets that hold a fence marker and no entry."""

    records: list[Record] = field(default_factory=list)
    start_offset: int = 0
    end_offset: int = 0

    def put(self, entry: Entry, hole: int = 0) -> None:
        self.end_offset += hole
        self.records.append(Record(self.end_offset, entry.encode(), timestamp_ms=0))
        self.end_offset += 1

    async def tail(self) -> Tail:
        return Tail(self.start_offset, self.end_offset, epoch=0)

    async def read_chunks(self, first: int, until: int | None = None) -> AsyncIterator[Sequence[Record]]:
        until = self.end_offset if until is None else until
        assert self.start_offset <= first <= until <= self.end_offset
        found = [each for each in self.records if first <= each.offset < until]
        for at in range(0, len(found), 3):
            yield found[at : at + 3]


def wal(timeline: TimelineId, start: int, data: bytes) -> Entry:
    return Entry(Kind.WAL, 77, timeline, Lsn(start), 5, data)

r"""Parses PostgreSQL's history files, which describe how timelines branch.

A line `1\t0/3000148\tno recovery target specified` in `00000002.history` says that timeline 2 branched off timeline 1
at 0/3000148. A history file also contains the lines of its ancestors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ottla.connect.postgres_wal.positions import Lsn, TimelineId, parse_lsn


@dataclass(frozen=True, slots=True)
class TimelineRange:
    """The part of a timeline that belongs to a history: from `begin` to `end`, which is exclusive, or None if open."""

    timeline: TimelineId
    begin: Lsn
    end: Lsn | None


@dataclass(frozen=True, slots=True)
class History:
    """The stretches that lead to a timeline, oldest first. The last one is the timeline itself and is open."""

    stretches: tuple[TimelineRange, ...]

    @property
    def timeline(self) -> TimelineId:
        """The timeline that the history leads to."""
        return self.stretches[-1].timeline

    @property
    def begin(self) -> Lsn:
        """Where the timeline itself begins."""
        return self.stretches[-1].begin

    def stretch_of(self, timeline: TimelineId) -> TimelineRange | None:
        """Returns the part of a timeline that belongs to this history; None if there is none."""
        return next((each for each in self.stretches if each.timeline == timeline), None)

    def pieces(self, first: Lsn, end: Lsn) -> Iterator[tuple[TimelineId, Lsn, Lsn]]:
        """Splits a range of WAL by timeline, in order."""
        for stretch in self.stretches:
            low, high = max(first, stretch.begin), end if stretch.end is None else min(end, stretch.end)
            if low < high:
                yield stretch.timeline, Lsn(low), Lsn(high)


def parse_history(timeline: TimelineId, text: bytes) -> History:
    """Parses a history file. Raises ValueError if it is not the history of that timeline."""
    stretches: list[TimelineRange] = []
    begin = Lsn(0)
    for line in text.decode("utf-8", errors="replace").splitlines():
        fields = line.split("#")[0].split()
        if not fields:
            continue
        if len(fields) < 2 or not fields[0].isdigit():
            raise ValueError(f"not a line of a timeline history file: {line!r}")
        ancestor, end = TimelineId(int(fields[0])), parse_lsn(fields[1])
        if ancestor >= timeline or (stretches and ancestor <= stretches[-1].timeline):
            raise ValueError(f"timeline {ancestor} cannot be an ancestor of timeline {timeline} there")
        stretches.append(TimelineRange(ancestor, begin, end))
        begin = end
    return History((*stretches, TimelineRange(timeline, begin, None)))


def first_history(timeline: TimelineId) -> History:
    """Returns the history of a timeline without a history file: it has no ancestors, or they are unknown."""
    return History((TimelineRange(timeline, Lsn(0), None),))

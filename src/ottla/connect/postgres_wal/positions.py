"""Positions in PostgreSQL's WAL: LSNs, timelines and segment files. Pure."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import NewType

from ottla.connect.postgres import lsn
from ottla.connect.postgres.lsn import lsn_text

__all__ = [
    "NO_LSN",
    "Lsn",
    "Segment",
    "TimelineId",
    "lsn_text",
    "parse_lsn",
    "segment_of_name",
    "segment_start",
    "timeline_of_history_name",
    "utc",
]

Lsn = NewType("Lsn", int)  # a byte position in the WAL of a timeline
TimelineId = NewType("TimelineId", int)

NO_LSN = Lsn(0)
_SEGMENT = re.compile(r"([0-9A-F]{8})([0-9A-F]{8})([0-9A-F]{8})")
_HISTORY = re.compile(r"([0-9A-F]{8})\.history")
_FOUR_GIB = 1 << 32

_UNIX_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def parse_lsn(text: str) -> Lsn:
    """Parses an LSN. Raises ValueError if the text is not one."""
    return Lsn(lsn.parse_lsn(text.strip()))


def utc(unix_us: int) -> datetime.datetime:
    """Converts microseconds since 1970 to a datetime."""
    return _UNIX_EPOCH + datetime.timedelta(microseconds=unix_us)


@dataclass(frozen=True, slots=True)
class Segment:
    """A WAL file, with the server's naming scheme."""

    timeline: TimelineId
    first_lsn: Lsn
    size_bytes: int

    @property
    def end_lsn(self) -> Lsn:
        """The LSN after the segment, with which the next one begins."""
        return Lsn(self.first_lsn + self.size_bytes)

    @property
    def name(self) -> str:
        """The file name: timeline, high and low part of the segment number, eight hexadecimal digits each."""
        number, in_one = self.first_lsn // self.size_bytes, _FOUR_GIB // self.size_bytes
        return f"{self.timeline:08X}{number // in_one:08X}{number % in_one:08X}"

    @property
    def next(self) -> Segment:
        """The next segment of the same timeline."""
        return Segment(self.timeline, self.end_lsn, self.size_bytes)


def segment_of_name(name: str, segment_bytes: int) -> Segment | None:
    """Parses the name of a WAL file; None if it is not one."""
    found = _SEGMENT.fullmatch(name)
    if found is None:
        return None
    timeline, high, low = (int(part, 16) for part in found.groups())
    number = high * (_FOUR_GIB // segment_bytes) + low
    return Segment(TimelineId(timeline), Lsn(number * segment_bytes), segment_bytes)


def timeline_of_history_name(name: str) -> TimelineId | None:
    """Parses the name of a history file; None if it is not one."""
    found = _HISTORY.fullmatch(name)
    return None if found is None else TimelineId(int(found.group(1), 16))


def segment_start(place: Lsn, segment_bytes: int) -> Lsn:
    """Returns the beginning of the segment that contains an LSN."""
    return Lsn(place - place % segment_bytes)

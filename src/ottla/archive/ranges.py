"""Arithmetic on offset ranges: what was read, what is missing, what was read twice. Pure.

A range is what a job requested from the broker, not what it received. Transaction markers and compaction leave offsets
without a record, so the number of records does not tell whether a range was read completely.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """A range of offsets; `start` is inclusive, `end` exclusive."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"invalid range of offsets: {self.start} to {self.end}")

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.start}-{self.end - 1}" if len(self) else f"none at {self.start}"

    def intersection(self, other: OffsetRange) -> OffsetRange | None:
        """Returns the offsets in both ranges, or None if there are none."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return OffsetRange(start, end) if start < end else None

    def contains(self, other: OffsetRange) -> bool:
        """Returns whether all offsets of `other` are in this range."""
        return self.start <= other.start and other.end <= self.end


def joined(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Returns the same offsets in as few ranges as possible, in order."""
    result: list[OffsetRange] = []
    for each in sorted(each for each in ranges if len(each)):
        if result and each.start <= result[-1].end:
            result[-1] = OffsetRange(result[-1].start, max(result[-1].end, each.end))
        else:
            result.append(each)
    return result


def gaps(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Returns the ranges between the given ones that none of them covers."""
    whole = joined(ranges)
    return [OffsetRange(before.end, after.start) for before, after in pairwise(whole)]


def overlaps(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Returns the ranges that more than one of the given ones covers."""
    found: list[OffsetRange] = []
    end = 0
    for each in sorted(each for each in ranges if len(each)):
        if each.start < end:
            found.append(OffsetRange(each.start, min(end, each.end)))
        end = max(end, each.end)
    return joined(found)


def without(whole: OffsetRange, taken: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Returns the parts of `whole` that are in none of `taken`."""
    rest: list[OffsetRange] = []
    start = whole.start
    for each in joined(taken):
        common = whole.intersection(each)
        if common is None:
            continue
        if common.start > start:
            rest.append(OffsetRange(start, common.start))
        start = common.end
    if start < whole.end:
        rest.append(OffsetRange(start, whole.end))
    return rest

"""Arithmetic on offset ranges: how much a batch may read, and how it is split into tasks. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ottla.client import TopicPartition

Offsets = dict[TopicPartition, int]


class OffsetRange(NamedTuple):
    """A range of offsets of one partition."""

    at: TopicPartition
    start: int
    end: int
    """Exclusive."""

    @property
    def size(self) -> int:
        """The number of offsets; 0 if the range is empty or inverted."""
        return max(0, self.end - self.start)


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Converts offsets to the format of Spark's connector. They are sorted, because Spark compares the text."""
    found: dict[str, dict[str, int]] = {}
    for at in sorted(offsets):
        found.setdefault(at.topic, {})[str(at.partition)] = offsets[at]
    return found


def from_json(found: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Parses offsets by topic and partition, as Spark's checkpoint has them."""
    return {
        TopicPartition(topic, int(index)): int(offset)
        for topic, offsets in found.items()
        for index, offset in offsets.items()
    }


def limited(start: Offsets, end: Offsets, limit: int) -> Offsets:
    """Returns end offsets for about `limit` records in total. Each partition gets a share in proportion to its
    backlog."""
    sizes = {at: end[at] - start[at] for at in end if at in start and end[at] > start[at]}
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    ends = dict(end)
    for at, size in sizes.items():
        share = limit * size / total
        # At least one per partition, so that none starves.
        ends[at] = min(end[at], start[at] + (math.ceil(share) if share < 1 else math.floor(share)))
    return ends


def split(
    ranges: Sequence[OffsetRange], parts_min: int | None = None, records_max: int | None = None
) -> list[OffsetRange]:
    """Splits ranges into tasks, in order: into about `parts_min` parts of at most `records_max` offsets."""
    chosen = [each for each in ranges if each.size]
    if records_max is not None:
        chosen = [part for each in chosen for part in _cut(each, math.ceil(each.size / records_max))]
    if parts_min is None or parts_min <= len(chosen):
        return chosen
    total = sum(each.size for each in chosen)
    small = [each for each in chosen if _share(each.size, total, parts_min) == 1]
    large_total = total - sum(each.size for each in small)
    large_parts = max(1, parts_min - len(small))
    return [
        part
        for each in chosen
        for part in ([each] if each in small else _cut(each, _share(each.size, large_total, large_parts)))
    ]


def _share(size: int, total: int, parts: int) -> int:
    return max(1, math.floor(size / total * parts + 0.5))


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    edges = [whole.start + whole.size * number // parts for number in range(parts + 1)]
    cut = [OffsetRange(whole.at, start, end) for start, end in pairwise(edges)]
    return [each for each in cut if each.size]

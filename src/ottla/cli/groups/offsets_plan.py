"""Computes the new offsets of `ottla groups reset` from the committed offsets and the log ranges. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ottla.cli.failures import CommandError

if TYPE_CHECKING:
    from ottla.client.consumer.types import TopicPartition

PARTITIONS_MAX = 100_000
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


class ResetTarget(Enum):
    """Where to move the offsets."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    SHIFT = "shift"
    CURRENT = "current"
    TIME = "time"
    FILE = "file"


class PartitionOffsets(NamedTuple):
    """The state of one partition that the plan depends on."""

    at: TopicPartition
    committed: int | None
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The old and the new offset of one partition."""

    topic: str
    partition: int
    old: int | None
    new: int
    first_offset: int
    end_offset: int
    remark: str | None

    @property
    def is_none(self) -> bool:
        """Returns whether the offset stays as it is."""
        return self.old == self.new


def plan_offsets(
    places: Sequence[PartitionOffsets],
    aim: ResetTarget,
    number: int = 0,
    found: Mapping[TopicPartition, int] | None = None,
) -> list[OffsetChange]:
    """Computes the new offset of each partition.

    `number` is the offset or the shift. `found` has the offsets looked up by time, with -1 for none, or those of a
    file.
    """
    return [_change(place, *_target(place, aim, number, found or {})) for place in places]


def _target(
    place: PartitionOffsets, aim: ResetTarget, number: int, found: Mapping[TopicPartition, int]
) -> tuple[int, str | None]:
    """Returns the offset before it is clamped to the log's range, and a remark."""
    if aim is ResetTarget.EARLIEST:
        return place.first, None
    if aim is ResetTarget.LATEST:
        return place.end, None
    if aim is ResetTarget.OFFSET:
        return number, None
    if aim is ResetTarget.FILE:
        return found[place.at], None
    if aim is ResetTarget.TIME:
        offset = found[place.at]
        return (offset, None) if offset >= 0 else (place.end, "no record is that recent: end of the log")
    if place.committed is None:
        raise CommandError(f"{place.at}: the group has no committed offset for this partition")
    return place.committed + (number if aim is ResetTarget.SHIFT else 0), None


def _change(place: PartitionOffsets, wanted: int, remark: str | None) -> OffsetChange:
    new = min(max(wanted, place.first), place.end)
    if wanted < place.first:
        remark = f"{wanted} is before the start of the log at {place.first}"
    elif wanted > place.end:
        remark = f"{wanted} is after the end of the log at {place.end}"
    return OffsetChange(place.at.topic, place.at.partition, place.committed, new, place.first, place.end, remark)


# Parsing of user input.


def parse_topic(text: str) -> tuple[str, list[int] | None]:
    """Parses `orders` or `orders:0,3,5-7`. Raises ValueError for anything else."""
    name, separator, partitions = text.partition(":")
    if not name or (separator and not partitions):
        raise ValueError(f"{text!r} is not TOPIC or TOPIC:PARTITIONS, such as orders:0,3,5-7")
    if not separator:
        return name, None
    chosen: set[int] = set()
    for part in partitions.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 0 <= first <= last < PARTITIONS_MAX:
            raise ValueError(f"{part!r} in {text!r} is neither a partition nor a range such as 5-7")
        chosen.update(range(first, last + 1))
    return name, sorted(chosen)


def read_offsets(path: Path, group: str) -> dict[TopicPartition, int]:
    """Reads lines of `topic,partition,offset`, or of `group,topic,partition,offset` as Kafka's tool writes them."""
    from ottla.client.consumer.types import TopicPartition

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as cause:
        reason = cause.strerror if isinstance(cause, OSError) else "it is not text"
        raise CommandError(f"the offsets file {path} cannot be read: {reason}") from cause
    offsets: dict[TopicPartition, int] = {}
    for number, line in enumerate(lines, 1):
        fields = [field.strip().strip('"') for field in line.split(",")]
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if len(fields) == 4 and fields.pop(0) != group:
            continue
        if len(fields) != 3 or not fields[0] or not all(field.isdecimal() for field in fields[1:]):
            raise CommandError(f"{path}, line {number}: not in the format topic,partition,offset")
        at = TopicPartition(fields[0], int(fields[1]))
        if at in offsets:
            raise CommandError(f"{path}, line {number}: {at} occurs twice")
        offsets[at] = int(fields[2])
    if not offsets:
        raise CommandError(f'{path} has no offsets of group "{group}"')
    return offsets


def offsets_as_csv(changes: Sequence[OffsetChange]) -> str:
    """Formats the old offsets as CSV, so that the change can be undone."""
    return "".join(f"{each.topic},{each.partition},{each.old}\n" for each in changes if each.old is not None)

"""Decides which expired segments wait for the archive, and which have waited long enough. Pure.

Retention removes the oldest segments. If the topic names the group of an archive, they are removed once all of their
records are archived. Segments that are not archived are kept, but only up to a bound, because a full disk would stop
all writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ExpiredSegment(NamedTuple):
    """A segment that retention would remove."""

    end_offset: int
    size_bytes: int
    waited_ms: float
    """Time since retention first tried to remove it."""


class ArchiveWaitLimits(NamedTuple):
    """How much data may wait for the archive, and how long; -1 means no limit."""

    bytes_max: int
    ms_max: int


class RemovalDecision(NamedTuple):
    """How many of the oldest segments to remove."""

    archived: int
    """Number of the oldest segments that are archived and are removed."""
    given_up: int
    """Number of the following segments that are removed although they are not archived."""

    @property
    def going(self) -> int:
        """The number of segments to remove: the archived ones, and those that waited too long."""
        return self.archived + self.given_up


def decide(due: Sequence[ExpiredSegment], archived_end: int | None, bounds: ArchiveWaitLimits) -> RemovalDecision:
    """Decides about the segments in `due`, oldest first. `archived_end` is the first offset that is not archived; None
    if it is unknown, in which case nothing counts as archived."""
    archived = 0
    while archived_end is not None and archived < len(due) and due[archived].end_offset <= archived_end:
        archived += 1
    waiting = due[archived:]
    waiting_bytes = sum(each.size_bytes for each in waiting)
    given_up = 0
    for each in waiting:
        is_too_much = 0 <= bounds.bytes_max < waiting_bytes
        is_too_long = 0 <= bounds.ms_max < each.waited_ms
        if not (is_too_much or is_too_long):
            break
        waiting_bytes -= each.size_bytes
        given_up += 1
    return RemovalDecision(archived, given_up)

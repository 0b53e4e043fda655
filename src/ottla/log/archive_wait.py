"""Which expired segments wait for the archive, and which have waited long enough. Pure.

Retention wants the oldest segments gone. Of a topic that names an archive's group they go when all of their records are
archived. What is not archived is kept, but only up to a bound: a disk that is full helps nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Due(NamedTuple):
    """A segment that retention would remove."""

    end_offset: int
    size_bytes: int
    waited_ms: float
    """Since retention first wanted it gone."""


class Bounds(NamedTuple):
    """How much may wait, and how long; -1 is no limit."""

    bytes_max: int
    ms_max: int


class Verdict(NamedTuple):
    archived: int
    """So many of the oldest are archived and go."""
    given_up: int
    """So many of those that follow go although they are not."""

    @property
    def going(self) -> int:
        return self.archived + self.given_up


def decide(due: Sequence[Due], archived_end: int | None, bounds: Bounds) -> Verdict:
    """`due` begins with the oldest. `archived_end` is the first offset that is not archived; None if that is not known:
    then nothing is taken for archived."""
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
    return Verdict(archived, given_up)

"""Named deadlines: set, moved, cancelled, and returned when due.

Heartbeats move a deadline thousands of times before it is ever due. Moving a deadline to a later time therefore costs
only a dictionary entry; the heap is updated when the earlier time has come.
"""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import NamedTuple


class TimerKind(IntEnum):
    """The reasons for a timer of the group coordinator."""

    SESSION = 0
    JOIN = 1
    """Ends the join phase of a classic group."""
    SYNC = 2
    """Removes members of a classic group that have not sent SyncGroup."""
    REVOCATION = 3
    """A member of a consumer group must have revoked its partitions."""
    MEMBER_JOIN = 4
    """A classic member of a consumer group must have rejoined."""
    MEMBER_SYNC = 5
    RETENTION = 6


class TimerName(NamedTuple):
    """Identifies a timer: one of a group, of a member, or of the coordinator (RETENTION)."""

    kind: TimerKind
    group: str = ""
    member_id: str = ""


class Timers:
    """A heap of deadlines, one for each name."""

    def __init__(self) -> None:
        self._deadlines: dict[TimerName, int] = {}
        self._heap: list[tuple[int, TimerName]] = []
        self._queued: dict[TimerName, int] = {}
        """The valid heap entry of each name; never later than its deadline."""

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, name: TimerName) -> bool:
        return name in self._deadlines

    def set(self, name: TimerName, at_ms: int) -> None:
        """Sets or moves the deadline of a name, in the milliseconds of the coordinator's clock."""
        self._deadlines[name] = at_ms
        queued = self._queued.get(name)
        if queued is None or at_ms < queued:
            self._queue(name, at_ms)

    def cancel(self, name: TimerName) -> None:
        """Removes a deadline, if it is set."""
        self._deadlines.pop(name, None)

    def next_ms(self) -> int | None:
        """Returns the first deadline, or a time before it."""
        while self._heap:
            at_ms, name = self._heap[0]
            if self._queued.get(name) == at_ms and name in self._deadlines:
                return at_ms
            self._drop_first()
        return None

    def pop_due(self, now_ms: int) -> TimerName | None:
        """Returns and removes a timer that is due, or returns None."""
        while self._heap and self._heap[0][0] <= now_ms:
            name = self._drop_first()
            deadline = self._deadlines.get(name) if name is not None else None
            if name is None or deadline is None:
                continue
            if deadline <= now_ms:
                del self._deadlines[name]
                return name
            self._queue(name, deadline)
        return None

    def _queue(self, name: TimerName, at_ms: int) -> None:
        self._queued[name] = at_ms
        heapq.heappush(self._heap, (at_ms, name))

    def _drop_first(self) -> TimerName | None:
        """Removes the first heap entry. Returns its name if the entry was valid."""
        at_ms, name = heapq.heappop(self._heap)
        if self._queued.get(name) != at_ms:
            return None
        del self._queued[name]
        return name

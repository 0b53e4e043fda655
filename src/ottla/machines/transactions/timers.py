"""Named deadlines: set, moved, cancelled, and returned when due."""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import NamedTuple


class TimerKind(IntEnum):
    """The reasons for a timer of the transaction coordinator."""

    TIMEOUT = 0
    """A transaction reached its timeout and is aborted."""
    MARKERS = 1
    """Failed marker writes are retried."""
    EXPIRATION = 2
    """Unused transactional ids are expired."""


class TimerName(NamedTuple):
    """Identifies a timer: that of a transactional id, or one of the coordinator."""

    kind: TimerKind
    transactional_id: str = ""


class Timers:
    """A heap of deadlines, one for each name."""

    def __init__(self) -> None:
        self._deadlines: dict[TimerName, int] = {}
        self._heap: list[tuple[int, TimerName]] = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, name: TimerName) -> bool:
        return name in self._deadlines

    def set(self, name: TimerName, at_ms: int) -> None:
        """Sets or moves the deadline of a name, in the milliseconds of the coordinator's clock."""
        if self._deadlines.get(name) != at_ms:
            self._deadlines[name] = at_ms
            heapq.heappush(self._heap, (at_ms, name))
            self._tidy()

    def cancel(self, name: TimerName) -> None:
        """Removes a deadline, if it is set."""
        self._deadlines.pop(name, None)

    def next_ms(self) -> int | None:
        """Returns the next deadline, or None."""
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> TimerName | None:
        """Returns and removes a timer that is due, or returns None."""
        at_ms = self.next_ms()
        if at_ms is None or at_ms > now_ms:
            return None
        _, name = heapq.heappop(self._heap)
        del self._deadlines[name]
        return name

    def _drop_stale(self) -> None:
        """Removes moved and cancelled deadlines from the top of the heap; others stay until they reach the top."""
        while self._heap and self._deadlines.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)

    def _tidy(self) -> None:
        """Rebuilds the heap if it is mostly stale: a transaction of milliseconds leaves behind a deadline
        minutes away."""
        if len(self._heap) > 2 * len(self._deadlines) + 64:
            self._heap = [(at_ms, name) for name, at_ms in self._deadlines.items()]
            heapq.heapify(self._heap)

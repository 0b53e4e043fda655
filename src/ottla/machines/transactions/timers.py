"""Deadlines by name: set, moved, cancelled, and found when they are due."""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import NamedTuple


class TimerKind(IntEnum):
    TIMEOUT = 0
    """A transaction is aborted."""
    MARKERS = 1
    """Markers that could not be written are tried again."""
    EXPIRATION = 2
    """Transactional ids that nobody uses are looked for."""


class TimerName(NamedTuple):
    kind: TimerKind
    transactional_id: str = ""


class Timers:
    def __init__(self) -> None:
        self._deadlines: dict[TimerName, int] = {}
        self._heap: list[tuple[int, TimerName]] = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, name: TimerName) -> bool:
        return name in self._deadlines

    def set(self, name: TimerName, at_ms: int) -> None:
        if self._deadlines.get(name) != at_ms:
            self._deadlines[name] = at_ms
            heapq.heappush(self._heap, (at_ms, name))
            self._tidy()

    def cancel(self, name: TimerName) -> None:
        self._deadlines.pop(name, None)

    def next_ms(self) -> int | None:
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> TimerName | None:
        """One that is due, which is then no longer set."""
        at_ms = self.next_ms()
        if at_ms is None or at_ms > now_ms:
            return None
        _, name = heapq.heappop(self._heap)
        del self._deadlines[name]
        return name

    def _drop_stale(self) -> None:
        """What was moved or cancelled stays in the heap until its time comes."""
        while self._heap and self._deadlines.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)

    def _tidy(self) -> None:
        """A transaction of milliseconds leaves a deadline of minutes behind: most of the heap would be those."""
        if len(self._heap) > 2 * len(self._deadlines) + 64:
            self._heap = [(at_ms, name) for name, at_ms in self._deadlines.items()]
            heapq.heapify(self._heap)

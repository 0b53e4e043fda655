"""What waits in the broker: produces for their acknowledgement, fetches for data, both with a deadline.

One timer serves all deadlines, however many wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

from ottla.model.errors import ErrorCode
from ottla.ports import Clock, Timer

Settled = Callable[[ErrorCode], None]
"""Told once: `none` when the records are acknowledged, else why they are not."""


class Expires(Protocol):
    def expire(self) -> None:
        """Its time is over; a no-op if it ended before."""
        ...

    @property
    def ended(self) -> bool: ...


class Deadlines:
    __slots__ = ("_clock", "_heap", "_number", "_timer", "_timer_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Expires]] = []
        self._number = 0
        self._timer: Timer | None = None
        self._timer_at = float("inf")

    def add(self, delay_ms: float, wait: Expires) -> None:
        at = self._clock.monotonic_ms() + delay_ms
        self._number += 1
        heapq.heappush(self._heap, (at, self._number, wait))
        if at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._arm(at, delay_ms)

    def _arm(self, at: float, delay_ms: float) -> None:
        self._timer_at = at
        self._timer = self._clock.call_later(max(delay_ms, 0), self._run)

    def _run(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        now = self._clock.monotonic_ms()
        heap = self._heap
        while heap and (heap[0][0] <= now or heap[0][2].ended):
            heapq.heappop(heap)[2].expire()
        if heap:
            self._arm(heap[0][0], heap[0][0] - now)

    def expire_all(self) -> None:
        """At shutdown: everything that waits is answered with what there is."""
        waits, self._heap = self._heap, []
        for _, _, wait in sorted(waits, key=lambda entry: entry[:2]):
            wait.expire()


class Wakeups:
    """Fetches that have something new to look at, gathered over one turn of the loop: a group commit that touches
    twelve partitions wakes a reader of all of them once."""

    __slots__ = ("_clock", "_scheduled", "_woken")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._woken: dict[int, Callable[[], None]] = {}
        self._scheduled = False

    def wake(self, key: int, look_again: Callable[[], None]) -> None:
        self._woken[key] = look_again
        if not self._scheduled:
            self._scheduled = True
            self._clock.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        woken, self._woken = self._woken, {}
        for look_again in woken.values():
            look_again()

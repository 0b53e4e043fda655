"""Virtual time. Nothing runs by itself: a test asks for the next event, so every run is the same."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from functools import partial

CALLBACKS_MAX = 10_000_000
"""Limit after which a simulation that never becomes idle, which is a bug, ends with an error instead of hanging."""


class SimTimer:
    """Implements `ports.Timer` for SimClock."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class SimClock:
    """Implements `ports.Clock`. Callbacks due at the same time run in the order in which they were scheduled."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._wall_start_ms = start_ms
        self._elapsed_ms = 0.0
        self._ready: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, SimTimer]] = []
        self._timer_count = 0

    def now_ms(self) -> int:
        return self._wall_start_ms + int(self._elapsed_ms)

    def monotonic_ms(self) -> float:
        return self._elapsed_ms

    def seconds(self) -> float:
        return self.monotonic_ms() / 1000

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> SimTimer:
        timer = SimTimer(callback)
        self._timer_count += 1
        heapq.heappush(self._timers, (self._elapsed_ms + max(delay_ms, 0.0), self._timer_count, timer))
        return timer

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._ready.append(callback)

    def step_wall_clock(self, delta_ms: int) -> None:
        """Steps the wall clock, as an operator or NTP does. Monotonic time is not affected."""
        self._wall_start_ms += delta_ms

    def run_one(self) -> bool:
        """Runs the next callback that is due now; returns False if there is none. Time does not advance."""
        self._take_due_timers()
        if not self._ready:
            return False
        self._ready.popleft()()
        return True

    def run_until_idle(self) -> None:
        """Runs everything that is due now, and whatever that schedules in turn. Future timers stay."""
        for _ in range(CALLBACKS_MAX):
            if not self.run_one():
                return
        raise RuntimeError(f"the simulation is still busy after {CALLBACKS_MAX} callbacks at {self._elapsed_ms} ms")

    def advance(self, delta_ms: float) -> None:
        """Advances time: each timer on the way runs at its own time, with everything that follows from it."""
        until_ms = self._elapsed_ms + delta_ms
        self.run_until_idle()
        while (due_ms := self.next_timer_ms()) is not None and due_ms <= until_ms:
            self._elapsed_ms = max(self._elapsed_ms, due_ms)
            self.run_until_idle()
        self._elapsed_ms = until_ms
        self.run_until_idle()

    def next_timer_ms(self) -> float | None:
        """Returns the time of the next timer on the monotonic clock, or None."""
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _take_due_timers(self) -> None:
        while (due_ms := self.next_timer_ms()) is not None and due_ms <= self._elapsed_ms:
            timer = heapq.heappop(self._timers)[2]
            self._ready.append(partial(_fire, timer))


def _fire(timer: SimTimer) -> None:
    callback, timer.callback = timer.callback, None
    if callback is not None:
        callback()

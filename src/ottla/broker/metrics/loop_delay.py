"""Measures event loop delay with a timer that is due four times a second."""

from __future__ import annotations

from ottla.ports import Clock, Timer
from ottla.protocol.model.histogram import Histogram

INTERVAL_MS = 250.0


class LoopDelay:
    """Records how late the timer fires."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_ms = 0.0
        self._timer: Timer | None = None
        self.late_s = Histogram()

    def start(self) -> None:
        """Starts the timer. Must be called on the event loop's thread."""
        self._due_ms = self._clock.monotonic_ms() + INTERVAL_MS
        self._timer = self._clock.call_later(INTERVAL_MS, self._fire)

    def stop(self) -> None:
        """Stops the timer; the recorded delays stay."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self.late_s.note(max(0.0, self._clock.monotonic_ms() - self._due_ms) / 1000)
        self.start()

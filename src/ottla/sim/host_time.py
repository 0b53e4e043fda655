"""The clocks of a simulated machine: a wall clock and a monotonic clock, which drift from virtual time."""

from __future__ import annotations

from ottla.sim.scheduler import Scheduler


class HostTime:
    """The wall clock and the monotonic clock of one machine."""

    def __init__(self, scheduler: Scheduler, name: str, *, wall_s: float, monotonic_s: float, drift_ppm: float) -> None:
        self.name = name
        self.incarnation = 0
        """Number of processes that the machine has started so far."""
        self._scheduler = scheduler
        self._rate = 1.0 + drift_ppm * 1e-6
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._anchor_s = scheduler.now_s
        """Virtual time at which the two clocks had the values above."""

    def wall_s(self) -> float:
        """Returns the time of the wall clock, in seconds since 1970."""
        return self._wall_s + (self._scheduler.now_s - self._anchor_s) * self._rate

    def monotonic_s(self) -> float:
        """Returns the time of the monotonic clock, in seconds since an arbitrary moment."""
        return self._monotonic_s + (self._scheduler.now_s - self._anchor_s) * self._rate

    def virtual_s(self, monotonic_s: float) -> float:
        """Returns the virtual time at which the monotonic clock will have this value."""
        return self._anchor_s + (monotonic_s - self._monotonic_s) / self._rate

    def step_wall_clock(self, delta_ms: float) -> None:
        """Steps the wall clock, as an operator or NTP does. Monotonic time is not affected."""
        self._wall_s += delta_ms / 1000

    def set_drift(self, drift_ppm: float) -> None:
        """Makes both clocks gain this many microseconds a second from now on."""
        self._wall_s, self._monotonic_s = self.wall_s(), self.monotonic_s()
        self._anchor_s = self._scheduler.now_s
        self._rate = 1.0 + drift_ppm * 1e-6

"""The limit of a broker's backlog, computed from what is measured while producers wait.

The limit follows the drain rate, so that a full backlog is acknowledged within `TARGET_MS` on a fast disk and on a slow
one, or within three times the latency of a cluster whose acknowledgements take longer. It starts low: a first burst
must not overwhelm a slow follower before anything is measured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

TARGET_MS = 100.0
"""Time in which a full backlog should drain. It must be above the latency of an acknowledgement in an idle cluster, or
the limit itself would lower the rate that it follows. Where acknowledgements take longer, the time is
`LATENCIES` of the shortest one seen, at most `TARGET_MS_MAX`."""
LATENCIES = 3.0
"""A follower has one fetch in flight, so two rounds of records keep it busy, and the shortest latency is that of a
record that arrived at the end of a round (load seed 1146: 75 % of the peak with twice that latency)."""
TARGET_MS_MAX = 1000.0
"""Far below replica.lag.time.max.ms: a full backlog must not make a follower leave the ISR."""
LEAST_SHARE = 16
"""The limit does not fall below its maximum divided by this, which is enough to keep a cluster with slow
acknowledgements busy, unless acknowledgements take so long that a follower could leave the ISR (`LAG_SHARE`)."""
LAG_SHARE = 4
"""An acknowledgement should take at most replica.lag.time.max.ms divided by this. A leader notices that a follower has
caught up with one round trip of delay, so a follower may seem to lag twice as long as an acknowledgement takes."""
WINDOW_MS = 50.0
"""Length of one measurement of the drain rate."""
WINDOWS = 20
"""Number of windows over which the rate is averaged: acknowledgements arrive in bursts, one per write."""
AVERAGES = 3
"""Number of earlier averages, one after another, of which the highest counts. A pause (of a follower, or of a disk that
frees journal space) lowers one average or two. If the limit followed at once, it would itself keep the rate low after
the pause, because less in flight means smaller writes."""
LAG_MS_MAX = 10_000.0
"""The default of replica.lag.time.max.ms."""


class BacklogLimit:
    """The limit, in bytes. Time is passed in."""

    __slots__ = (
        "_bytes_max",
        "_bytes_min",
        "_lag_max_ms",
        "_latency_ms_min",
        "_rates",
        "_released_bytes",
        "_window_count",
        "_window_ms",
        "_windows",
        "latency_ms",
        "size_bytes",
    )

    def __init__(self, bytes_max: int, lag_max_ms: Callable[[], float] = lambda: LAG_MS_MAX) -> None:
        self._lag_max_ms = lag_max_ms
        self._bytes_max = bytes_max
        self._bytes_min = bytes_max // LEAST_SHARE
        self._windows: deque[tuple[int, float]] = deque(maxlen=WINDOWS)
        """Released bytes and length of the last windows, while producers waited."""
        self._rates: deque[float] = deque(maxlen=AVERAGES)
        """The average rate of each of the last `WINDOWS` windows in a row, in bytes per millisecond."""
        self._window_count = 0
        self._released_bytes = 0
        self._window_ms = 0.0
        """Time that producers have waited in the current window."""
        self._latency_ms_min = 0.0
        """The shortest time from an append to its acknowledgement that was measured; 0 before the first."""
        self.latency_ms = 0.0
        """The last such time."""
        self.size_bytes = self._bytes_min
        """The limit."""

    def on_latency(self, latency_ms: float) -> None:
        """Notes how long an acknowledgement took."""
        self.latency_ms = latency_ms
        self._latency_ms_min = min(latency_ms, self._latency_ms_min or latency_ms)

    def on_waited(self, waited_ms: float, released_bytes: int) -> None:
        """Notes the bytes that were released while producers waited for this time. A window may span several periods
        of waiting: if short ones were left out, only slow acknowledgements would count, and the limit would fall with
        them."""
        self._window_ms += waited_ms
        self._released_bytes += released_bytes
        if self._window_ms < WINDOW_MS:
            return
        self._windows.append((self._released_bytes, self._window_ms))
        self._window_ms = 0.0
        self._released_bytes = 0
        limit_bytes = min(max(self._rate() * self._target_ms, self._bytes_min), self._bytes_max)
        latency_ms_max = self._lag_max_ms() / LAG_SHARE
        if self.latency_ms > latency_ms_max:
            limit_bytes *= latency_ms_max / self.latency_ms
        self.size_bytes = int(limit_bytes)

    def _rate(self) -> float:
        """Returns the drain rate after another window, in bytes per millisecond."""
        rate = sum(size for size, _ in self._windows) / sum(length_ms for _, length_ms in self._windows)
        self._window_count += 1
        if self._window_count % WINDOWS == 0:
            self._rates.append(rate)
        return max(rate, *self._rates, 0.0)

    @property
    def _target_ms(self) -> float:
        return min(max(TARGET_MS, LATENCIES * self._latency_ms_min), TARGET_MS_MAX)

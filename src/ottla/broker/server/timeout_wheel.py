"""One timer for the timeouts of all connections.

The wheel has a few buckets, and each tick checks one of them. A connection stays in its bucket for life and only notes
that it received something, so no timer is set or cancelled while it is active. A timeout is noticed at most a quarter
late.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

BUCKETS = 8
ROUNDS_A_TIMEOUT = 4
TURN_S_MIN = 0.01


class TimeoutTarget(Protocol):
    """A connection with timeouts."""

    def check_timeouts(self, now_s: float) -> None:
        """Called once per round; may close the connection."""
        ...


class QuietTime:
    """Measures for how long a peer has neither sent nor received anything."""

    __slots__ = ("_since_s", "_unwritten_bytes", "heard")

    def __init__(self) -> None:
        self.heard = True
        """Whether something was received since the last measurement."""
        self._since_s = 0.0
        self._unwritten_bytes = 0

    def measure(self, now_s: float, unwritten_bytes: int, *, is_excused: bool) -> float | None:
        """Returns the time in milliseconds, or None and starts again if the peer was active since the last call or is
        excused because it waits for this side."""
        if self.heard or unwritten_bytes != self._unwritten_bytes or is_excused:
            self.heard = False
            self._unwritten_bytes = unwritten_bytes
            self._since_s = now_s
            return None
        return (now_s - self._since_s) * 1000


class TimeoutWheel:
    """Checks the timeouts of all connections in turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, shortest_timeout_ms: int) -> None:
        self._loop = loop
        self._turn_s = max(TURN_S_MIN, shortest_timeout_ms / 1000 / ROUNDS_A_TIMEOUT / BUCKETS)
        self._buckets: list[dict[TimeoutTarget, None]] = [{} for _ in range(BUCKETS)]
        self._bucket_of: dict[TimeoutTarget, int] = {}
        self._next = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, watched: TimeoutTarget) -> None:
        """Adds a connection to the emptiest bucket. The timer runs only while there are connections."""
        bucket = min(range(BUCKETS), key=lambda index: len(self._buckets[index]))
        self._buckets[bucket][watched] = None
        self._bucket_of[watched] = bucket
        if self._timer is None:
            self._timer = self._loop.call_later(self._turn_s, self._turn)

    def remove(self, watched: TimeoutTarget) -> None:
        """Removes a connection."""
        bucket = self._bucket_of.pop(watched, None)
        if bucket is not None:
            del self._buckets[bucket][watched]

    def stop(self) -> None:
        """Cancels the timer; timeouts are no longer checked."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turn(self) -> None:
        self._timer = self._loop.call_later(self._turn_s, self._turn) if self._bucket_of else None
        now_s = self._loop.time()
        bucket = self._buckets[self._next]
        self._next = (self._next + 1) % BUCKETS
        for watched in list(bucket):
            watched.check_timeouts(now_s)

"""What waits in the broker: produces for their acknowledgement, fetches for data, both with a deadline.

One timer serves all deadlines, however many wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ottla.model.errors import ErrorCode
from ottla.ports import Clock, Timer

LATER_MS = 3.0

Settled = Callable[[ErrorCode], None]
"""Told once: `none` when the records are acknowledged, else why they are not."""


class FetchWatch(NamedTuple):
    key: int
    look_again: Callable[[], None]


class ReplicaWatch(NamedTuple):
    """Of a follower."""

    key: int
    look_again: Callable[[], None]
    changed: Callable[[], bool]
    """There is something new. False if nobody waits for it now: it is found by the next request."""
    watermark_moved: Callable[[], None]
    """There is nothing to fetch, but something to be told."""


class Expires(Protocol):
    def expire(self) -> None:
        """Its time is over; a no-op if it ended before."""
        ...

    @property
    def ended(self) -> bool: ...


class Deadlines:
    """Waits of one length end in the order of their beginning: a queue for each length, one timer for all.

    What ended early falls out at the front of its queue, so that only what really waits is held.
    """

    __slots__ = ("_clock", "_queues", "_timer", "_timer_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queues: dict[int, deque[tuple[float, Expires]]] = {}
        self._timer: Timer | None = None
        self._timer_at = float("inf")

    def add(self, delay_ms: int, wait: Expires) -> None:
        at = self._clock.monotonic_ms() + delay_ms
        queue = self._queues.get(delay_ms)
        if queue is None:
            queue = self._queues[delay_ms] = deque()
        while queue and queue[0][1].ended:
            queue.popleft()
        queue.append((at, wait))
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
        for delay_ms, queue in list(self._queues.items()):
            while queue and (queue[0][0] <= now or queue[0][1].ended):
                queue.popleft()[1].expire()
            if not queue:
                self._queues.pop(delay_ms, None)
        if self._queues:
            at = min(queue[0][0] for queue in self._queues.values() if queue)
            if at < self._timer_at:
                if self._timer is not None:
                    self._timer.cancel()
                self._arm(at, at - now)

    def expire_all(self) -> None:
        """At shutdown: everything that waits is answered with what there is."""
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            for _, wait in queue:
                wait.expire()


class Wakeups:
    """Fetches that have something new to look at, gathered over one turn of the loop: a group commit that touches
    twelve partitions wakes a reader of all of them once."""

    __slots__ = ("_clock", "_later", "_scheduled", "_woken")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._woken: dict[int, Callable[[], None]] = {}
        self._later: dict[int, Callable[[], None]] = {}
        self._scheduled = False

    def wake(self, key: int, look_again: Callable[[], None]) -> None:
        self._woken[key] = look_again
        if self._later:
            self._later.pop(key, None)
        if not self._scheduled:
            self._scheduled = True
            self._clock.call_soon(self._run)

    def wake_later(self, key: int, look_again: Callable[[], None]) -> None:
        """Nobody waits for it: it is gathered over a few milliseconds."""
        if not self._later:
            self._clock.call_later(LATER_MS, self._run_later)
        self._later[key] = look_again

    def _run_later(self) -> None:
        later, self._later = self._later, {}
        for look_again in later.values():
            look_again()

    def _run(self) -> None:
        self._scheduled = False
        woken, self._woken = self._woken, {}
        for look_again in woken.values():
            look_again()

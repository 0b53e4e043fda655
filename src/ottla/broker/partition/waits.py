"""Pending requests: produces that wait for an acknowledgement and fetches that wait for data, all with a deadline.

One timer serves all deadlines, however many requests wait.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ottla.ports import Clock, Timer
from ottla.protocol.model.errors import ErrorCode

log = logging.getLogger("ottla.partition")

LATER_MS = 3.0

Settled = Callable[[ErrorCode], None]
"""Called once: with `none` when the records are acknowledged, or else with the error."""


class FetchWatch(NamedTuple):
    """A consumer's fetch that waits for data."""

    key: int
    look_again: Callable[[], None]


class ReplicaWatch(NamedTuple):
    """A follower's fetch session that watches a partition."""

    key: int
    look_again: Callable[[], None]
    changed: Callable[[], bool]
    """Notifies the session of new data. Returns False if no request waits; the next one will find the data."""
    watermark_moved: Callable[[], None]
    """Notifies the session of a new high watermark: there is nothing to fetch, but something to report."""


class Expirable(Protocol):
    """A pending request with a deadline."""

    def expire(self) -> None:
        """Ends the wait at its deadline. Does nothing if it has already ended."""
        ...

    @property
    def ended(self) -> bool:
        """True if the request has its reply, so that the deadline no longer matters."""
        ...


class Deadlines:
    """The deadlines of all waits, with one timer. Waits of equal length end in the order in which they began, so there
    is a queue per length.

    A wait that ended early is dropped when it reaches the front of its queue, so ended waits do not pile up.
    """

    __slots__ = ("_clock", "_queues", "_timer", "_timer_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queues: dict[int, deque[tuple[float, Expirable]]] = {}
        self._timer: Timer | None = None
        self._timer_at = float("inf")

    def add(self, delay_ms: int, wait: Expirable) -> None:
        """Adds a wait that expires after the delay."""
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
        """Expires every wait, at shutdown: each request is answered with the data there is."""
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            for _, wait in queue:
                wait.expire()


class Wakeups:
    """Collects woken fetches: a group commit that touches twelve partitions wakes a reader of all of them once.

    They are collected over the requests of one read from a connection, or else over one iteration of the event loop.
    """

    __slots__ = ("_clock", "_is_reading", "_later", "_scheduled", "_woken")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_reading = False
        self._woken: dict[int, Callable[[], None]] = {}
        self._later: dict[int, Callable[[], None]] = {}
        self._scheduled = False

    def begin_read(self) -> None:
        """Collects until `end_read`, which the caller guarantees to call before the event loop continues."""
        self._is_reading = True

    def end_read(self) -> None:
        """Wakes the fetches that were collected since `begin_read`. A fetch that fails does not concern the connection
        that was read from."""
        self._is_reading = False
        if self._woken:
            try:
                self._run()
            except Exception:
                log.exception("a fetch that was woken has failed")

    def wake(self, key: int, look_again: Callable[[], None]) -> None:
        """Wakes a fetch at the end of the read, or in the next iteration of the event loop."""
        self._woken[key] = look_again
        if self._later:
            self._later.pop(key, None)
        if not self._is_reading and not self._scheduled:
            self._scheduled = True
            self._clock.call_soon(self._run)

    def wake_later(self, key: int, look_again: Callable[[], None]) -> None:
        """Wakes a fetch within a few milliseconds, together with others: no request waits for it."""
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

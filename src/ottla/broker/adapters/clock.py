"""The clock of the operating system and the timers of the event loop."""

from __future__ import annotations

import math
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable

from ottla.ports import Timer

_MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""This clock keeps running while the machine is suspended, where the system has such a clock: a lease must not outlive
a closed laptop lid."""


def monotonic_ms_plainly() -> float:
    """Returns the time of a clock that never goes backwards. The pure Python version of the compiled function."""
    return time.clock_gettime(_MONOTONIC) * 1000


def now_ms_plainly() -> int:
    """Returns the wall-clock time. The pure Python version of the compiled function."""
    return time.time_ns() // 1_000_000


def _best_functions() -> tuple[Callable[[], float], Callable[[], int]]:
    try:
        from ottla.broker.adapters import _clock
    except ImportError:
        return monotonic_ms_plainly, now_ms_plainly
    return _clock.monotonic_ms, _clock.now_ms


_monotonic_ms, _now_ms = _best_functions()

EARLY_MS_MAX = 1


class RealClock:
    """Implements `ports.Clock`. Timers do not advance during a suspend, so deadlines are checked with
    `monotonic_ms`."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop

    now_ms = staticmethod(_now_ms)
    monotonic_ms = staticmethod(_monotonic_ms)
    seconds = staticmethod(time.perf_counter)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Never fires early, although uvloop rounds to milliseconds and counts them from a time that it has rounded
        down."""
        whole_ms = math.ceil(delay_ms) + EARLY_MS_MAX if delay_ms > 0 else 0
        return self._loop.call_later(whole_ms / 1000, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

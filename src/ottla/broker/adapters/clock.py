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

EARLY_MS_MAX = 1


class RealClock:
    """Implements `ports.Clock`. Timers do not advance during a suspend, so deadlines are checked with
    `monotonic_ms`."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.clock_gettime(_MONOTONIC) * 1000

    seconds = staticmethod(time.perf_counter)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Never fires early, although uvloop rounds to milliseconds and counts them from a time that it has rounded
        down."""
        whole_ms = math.ceil(delay_ms) + EARLY_MS_MAX if delay_ms > 0 else 0
        return self._loop.call_later(whole_ms / 1000, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

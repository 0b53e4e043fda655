"""Pings that detect a peer that has vanished without closing the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from ottla.net.grpc.output import Output

PING = b"ottla-rp"


class PingTimes(NamedTuple):
    """The interval between pings and the timeout of a reply."""

    every_s: float
    patience_s: float


class Pings:
    """Pings the peer of one connection. Calls `on_unanswered` if it does not reply in time."""

    __slots__ = ("_loop", "_on_unanswered", "_output", "_timer", "_times")

    def __init__(self, times: PingTimes, output: Output, on_unanswered: Callable[[], None]) -> None:
        self._times = times
        self._output = output
        self._on_unanswered = on_unanswered
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Sends the first ping after one interval."""
        self._timer = self._loop.call_later(self._times.every_s, self._ping)

    def stop(self) -> None:
        """Sends no more pings."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_answered(self) -> None:
        """Called when the peer has replied to a ping."""
        if self._timer is not None:
            self._timer.cancel()
            self.start()

    def _ping(self) -> None:
        self._timer = self._loop.call_later(self._times.patience_s, self._on_unanswered)
        self._output.http2.ping(PING)
        self._output.flush()

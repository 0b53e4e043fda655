"""Delivers results from a Python thread to the event loop, in order and with one wake-up for many results."""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable

log = logging.getLogger("ottla.disk")


class LoopDelivery:
    """A queue of callbacks from any thread to the event loop."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._results: deque[Callable[[], None]] = deque()
        self._wake_sent = False

    def post(self, deliver: Callable[[], None]) -> None:
        """Schedules a callback on the loop. May be called from any thread."""
        self._results.append(deliver)
        if self._wake_sent:
            return
        self._wake_sent = True
        try:
            self._loop.call_soon_threadsafe(self.drain)
        except RuntimeError:
            log.debug("the event loop is closed; %d results are kept until close()", len(self._results))

    def drain(self) -> None:
        """Runs the posted callbacks on the loop's thread. `close` also calls it after the posting thread has ended."""
        self._wake_sent = False  # first, so that a result posted from here on sends its own wake-up
        for _ in range(len(self._results)):
            if not self._results:
                return  # a callback closed the queue, which delivered the rest
            try:
                self._results.popleft()()
            except Exception:
                log.exception("the completion callback of a disk operation failed")
            except BaseException:
                self._loop.call_soon(self.drain)
                raise

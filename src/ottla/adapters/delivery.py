"""From a Python thread back to the event loop: in order, and with one wake-up for many results."""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable

log = logging.getLogger("ottla.disk")


class LoopDelivery:
    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._results: deque[Callable[[], None]] = deque()
        self._wake_sent = False

    def post(self, deliver: Callable[[], None]) -> None:
        """From any thread: has the loop run this."""
        self._results.append(deliver)
        if self._wake_sent:
            return
        self._wake_sent = True
        try:
            self._loop.call_soon_threadsafe(self.drain)
        except RuntimeError:
            log.debug("the event loop is closed: %d results wait for close()", len(self._results))

    def drain(self) -> None:
        """On the loop's thread. Also called by `close`, when the thread that posts has ended."""
        self._wake_sent = False  # before looking: a result that is posted from here on sends its own wake-up
        for _ in range(len(self._results)):
            if not self._results:
                return  # a callback closed the queue, which delivered the rest
            try:
                self._results.popleft()()
            except Exception:
                log.exception("a completion of disk work failed")
            except BaseException:
                self._loop.call_soon(self.drain)
                raise

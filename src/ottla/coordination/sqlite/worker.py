"""Runs blocking jobs off the event loop, one at a time, with a time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ottla.coordination.port import OutcomeUnknownError, UnavailableError

T = TypeVar("T")


PATIENCE = 0.8
"""Fraction of the timeout after which a waiting job gives up, before its caller does, so that the outcome is known."""


class Worker:
    """A single worker thread. `begin` is called with the time until which a job may wait, on the clock
    `time.monotonic`."""

    def __init__(self, name: str, timeout_s: float, begin: Callable[[float], None] | None = None) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._timeout_s = timeout_s
        self._begin = begin

    async def call(self, job: Callable[[], T]) -> T:
        """Runs a job. Raises UnavailableError if it did not start in time, OutcomeUnknownError if it did not finish."""
        deadline = time.monotonic() + self._timeout_s * PATIENCE

        def run() -> T:
            if self._begin is not None:
                self._begin(deadline)
            return job()

        try:
            running = self._executor.submit(run)
        except RuntimeError as error:
            raise UnavailableError("the coordination client is closed") from error
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.wrap_future(running)
        except TimeoutError:
            if running.cancel():
                raise UnavailableError(f"the coordination file was locked for {self._timeout_s} s") from None
            raise OutcomeUnknownError(
                f"an operation on the coordination file did not finish within {self._timeout_s} s"
            ) from None

    async def close(self) -> None:
        """Shuts down after the current job."""
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=True)

"""Blocking jobs off the event loop, one after another, with a limit to the wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ottla.coordination.port import OutcomeUnknownError, UnavailableError

T = TypeVar("T")


PATIENCE = 0.8
"""Of the time-out: a job that waits for others gives up before its caller does, so that the caller knows."""


class Worker:
    """`begin` is told until when a job may wait for others, on the clock `time.monotonic`."""

    def __init__(self, name: str, timeout_s: float, begin: Callable[[float], None] | None = None) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._timeout_s = timeout_s
        self._begin = begin

    async def call(self, job: Callable[[], T]) -> T:
        """Raises UnavailableError if the job did not begin in time, OutcomeUnknownError if it did not end."""
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
                raise UnavailableError(f"the coordination file was busy for {self._timeout_s} s") from None
            raise OutcomeUnknownError(f"the coordination file did not answer in {self._timeout_s} s") from None

    async def close(self) -> None:
        """After what was begun."""
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=True)

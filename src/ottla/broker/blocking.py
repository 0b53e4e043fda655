"""Awaiting a blocking job that runs on a disk thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from ottla.ports import DiskQueue

T = TypeVar("T")


def resolve(future: asyncio.Future[T], value: T) -> None:
    """A waiter that was cancelled needs no answer any more."""
    if not future.done():
        future.set_result(value)


def run_blocking(queue: DiskQueue, job: Callable[[], T]) -> asyncio.Future[T]:
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # the job's own None is a T

    queue.call(job, done)
    return future

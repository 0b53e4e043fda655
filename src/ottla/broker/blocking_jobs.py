"""Awaiting a blocking job that runs on a disk thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from ottla.ports import DiskQueue

T = TypeVar("T")


def resolve(future: asyncio.Future[T], value: T) -> None:
    """Sets the result of a future, unless its waiter was cancelled."""
    if not future.done():
        future.set_result(value)


def run_blocking(queue: DiskQueue, job: Callable[[], T]) -> asyncio.Future[T]:
    """Runs a blocking job on the queue's disk thread and returns a future of its result."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # a job that returns None has T = None

    queue.call(job, done)
    return future

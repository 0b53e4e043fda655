"""A thread that runs blocking Python jobs one after another and delivers their results on the event loop."""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from ottla.broker.adapters.delivery import LoopDelivery

T = TypeVar("T")


class JobThread:
    """Runs jobs on one thread, which starts with the first job: most brokers never need a queue's second thread."""

    def __init__(self, loop: AbstractEventLoop, name: str) -> None:
        self._name = name
        self._delivery = LoopDelivery(loop)
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending = 0
        self._closed = False

    def call(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Runs `job` on the thread, then `done` with its result or error on the event loop."""
        if self._closed:
            raise RuntimeError("the disk queue is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._pending += 1
        self._jobs.put(lambda: self._perform(job, done))

    def pending(self) -> int:
        """Returns the number of jobs whose results have not been delivered yet."""
        return self._pending

    def close(self) -> None:
        """Runs the queued jobs, ends the thread and delivers the remaining results. Blocking."""
        self._closed = True
        if self._thread is None:
            return
        self._jobs.put(None)
        self._thread.join()
        self._delivery.drain()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            job = None  # while the thread waits, it must not keep the objects of the last job alive

    def _perform(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = job()
        except BaseException as failure:
            error = failure
        self._delivery.post(lambda: self._deliver(done, result, error))

    def _deliver(
        self, done: Callable[[T | None, BaseException | None], None], result: T | None, error: BaseException | None
    ) -> None:
        self._pending -= 1
        done(result, error)

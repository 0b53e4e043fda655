"""A broker inside this process, with its own event loop in its own thread.

The broker continues while a test blocks or runs another event loop. Killing it ends everything that ran for it, because
all its tasks belong to its loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

from ottla.broker.app import BrokerSettings, RunningBroker, start_broker

T = TypeVar("T")


class BrokerThread:
    """Starts, stops and kills one broker. Each call blocks until it is done.

    A `start` after `stop` or `kill` uses the same port and the same data.

        broker = BrokerThread(BrokerSettings(data_dir=str(tmp_path), port=0), number=1)
        broker.start()
        ...                    # connect to broker.address
        broker.kill()
    """

    def __init__(self, settings: BrokerSettings, number: int) -> None:
        self.settings = settings
        self.number = number
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.running: RunningBroker | None = None

    @property
    def address(self) -> str:
        """The broker's `host:port`. Raises RuntimeError before the first start."""
        if not self.settings.port:
            raise RuntimeError("the cluster was not started")
        return f"{self.settings.host}:{self.settings.port}"

    def start(self) -> None:
        """Starts the broker unless it runs."""
        if self.running is not None:
            return
        self._start_loop()
        try:
            self.running = self.call(start_broker(self.settings))
        except BaseException:
            self._end_loop()
            raise
        self.settings.port = self.running.broker.context.endpoints.clients.port
        if self.running.append_stream is not None:
            self.settings.properties["ottla.wal.port"] = str(self.running.append_stream.port)

    def stop(self) -> None:
        """Shuts down like a broker that receives SIGTERM: replies to accepted requests and makes them durable."""
        if self.running is not None:
            self._end(self.running.stop)

    def kill(self) -> None:
        """Ends at once, without flushing."""
        if self.running is not None:
            self._end(self.running.kill)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the broker's event loop and returns its result."""
        assert self._loop is not None, "the broker is running"
        outcome: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return outcome.result()

    def _end(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.running = None
        try:
            self.call(end())
        finally:
            self._end_loop()

    def _start_loop(self) -> None:
        self._loop = uvloop.new_event_loop()
        name = f"ottla-broker-{self.number}"
        self._thread = threading.Thread(target=_run, args=(self._loop,), name=name, daemon=True)
        self._thread.start()

    def _end_loop(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop = self._thread = None


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        _cancel_tasks(loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _cancel_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancels the tasks that a killed broker left behind."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

"""A broker inside the test process.

It runs on an event loop and a thread of its own: a test may block, or run another event loop, and the broker goes on.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from ottla.app import BrokerSettings, RunningBroker, start_broker
from ottla.model.durability import Durability
from ottla.model.errors import ErrorCode, Refused

T = TypeVar("T")


class TopicRefusedError(Exception):
    """The broker refused to create a topic."""

    def __init__(self, name: str, refused: Refused) -> None:
        super().__init__(f"topic {name!r}: {refused.error.name}: {refused.message or 'refused'}")
        self.error: ErrorCode = refused.error


class Cluster:
    """A context manager, `with` or `async with`; starts once entered.

    Without a `data_dir` the data lies in a temporary directory that goes with the cluster. `storage` is the durability
    of topics that do not name one: `disk`, `cache` or `memory`. `config` has broker settings by Kafka's names. With
    `power_cuts`, `kill` also loses whatever was not yet on stable storage; without, it leaves what the death of a
    process leaves.

    The methods block until they are done, which takes milliseconds.
    """

    def __init__(
        self,
        *,
        storage: str | None = None,
        data_dir: str | PathLike[str] | None = None,
        port: int = 0,
        config: Mapping[str, str] | None = None,
        power_cuts: bool = False,
    ) -> None:
        self._settings = BrokerSettings(
            data_dir="" if data_dir is None else fspath(data_dir),
            host="127.0.0.1",
            port=port,
            storage=None if storage is None else Durability(storage),
            properties=dict(config or {}),
            disk="volatile" if power_cuts else "real",
        )
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._running: RunningBroker | None = None

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`; stays the same over restarts."""
        if not self._settings.port:
            raise RuntimeError("the cluster was not started")
        return f"{self._settings.host}:{self._settings.port}"

    @property
    def data_dir(self) -> str:
        return self._settings.data_dir

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def start(self) -> None:
        """Starts the broker, or starts it again after `stop` or `kill`, on the same port and the same data."""
        if self._running is not None:
            return
        if not self._settings.data_dir:
            self._temporary = tempfile.TemporaryDirectory(prefix="ottla-", ignore_cleanup_errors=True)
            self._settings.data_dir = self._temporary.name
        self._start_loop()
        try:
            self._running = self._call(start_broker(self._settings))
        except BaseException:
            self._end_loop()
            raise
        self._settings.port = self._running.broker.endpoint.port

    def stop(self) -> None:
        """Ends as a broker does that is told to: answers what it accepted and makes it durable."""
        if self._running is not None:
            self._end(self._running.stop)

    def kill(self) -> None:
        """Ends at once, without flushing anything; `start` recovers what is there."""
        if self._running is not None:
            self._end(self._running.kill)

    def restart(self) -> None:
        self.stop()
        self.start()

    def create_topic(self, name: str, partitions: int = 1, **configs: object) -> None:
        """Topic configs by Kafka's names with `_` for `.`: `retention_ms=1000`, `cleanup_policy="compact"`."""
        if self._running is None:
            raise RuntimeError("the cluster does not run")
        broker = self._running.broker
        named = {key.replace("_", "."): _config_value(value) for key, value in configs.items()}
        outcome = self._call(broker.create_topic(name, partitions, named))
        if isinstance(outcome, Refused):
            raise TopicRefusedError(name, outcome)

    def close(self) -> None:
        """Stops, and removes the temporary directory."""
        self.stop()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None
            self._settings.data_dir = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # The thread of the broker

    def _start_loop(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="ottla-broker", daemon=True)
        self._thread.start()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        outcome: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return outcome.result()

    def _end(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._running = None
        try:
            self._call(end())
        finally:
            self._end_loop()

    def _end_loop(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop = self._thread = None


def _config_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        _cancel_tasks(loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _cancel_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """What a killed broker left behind."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

"""Turns methods of an asyncio client into blocking methods with the same arguments and types."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, cast

from ottla.client.errors import ClientClosedError
from ottla.client.loop_thread import shared_loop_thread

P = ParamSpec("P")
T = TypeVar("T")


class AsyncClient(Protocol):
    """A client that a `Facade` can wrap."""

    async def start(self) -> None:
        """Connects to the cluster. Called once, before any other method."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def same_arguments(constructor: Callable[P, object]) -> Callable[[Any], Callable[Concatenate[Any, P], None]]:
    """Decorates an `__init__` that passes all its arguments on to this constructor."""

    def decorate(init: Any) -> Callable[Concatenate[Any, P], None]:
        of_self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        signature = inspect.signature(constructor)
        init.__signature__ = signature.replace(parameters=[of_self, *signature.parameters.values()])
        return cast("Callable[Concatenate[Any, P], None]", init)

    return decorate


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Returns a blocking version of a coroutine method for a `Facade`, which runs it with `self.call`."""

    @functools.wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> T:
        found: T = self.call(lambda client: method(client, *arguments, **named))
        return found

    return call


def on_loop(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Does the same for a method that does not wait. It still runs on the client's event loop."""

    @functools.wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> T:
        async def work(client: Any) -> T:
            return method(client, *arguments, **named)

        found: T = self.call(work)
        return found

    return call


class Facade:
    """A blocking client. It is created on the event loop and started by `with`, by `start` or by its first use."""

    def __init__(self, create: Callable[[], AsyncClient]) -> None:
        self._thread = shared_loop_thread()
        self._is_started = self._is_closing = self._is_closed = False

        async def on_the_loop() -> tuple[AsyncClient, asyncio.Lock]:
            return create(), asyncio.Lock()

        self._client: Any
        self._client, self._starting = self._thread.call(on_the_loop)

    def start(self) -> None:
        """Connects. Raises NoBrokerError if no broker answers."""

        async def nothing(client: Any) -> None:
            pass

        self.call(nothing)

    def close(self) -> None:
        """Closes like the asyncio client: a producer flushes, a consumer commits and leaves its group."""
        self._close(None, None, None)

    def call(self, work: Callable[[Any], Coroutine[Any, Any, T]], give_back: Callable[[T], None] | None = None) -> T:
        """Runs a coroutine function with the client, which is started first. `LoopThread.call` explains `give_back`."""

        async def started() -> T:
            await self._ensure_started()
            return await work(self._client)

        return self._thread.call(started, give_back)

    async def _ensure_started(self) -> None:
        if self._is_closed:
            raise ClientClosedError("the client is closed")
        async with self._starting:  # two threads may use the client for the first time at once
            if not self._is_started:
                await self._client.start()
                self._is_started = True
                self._on_started()

    def _on_started(self) -> None:
        """Called on the event loop after the first start."""

    def _close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async def work() -> None:
            if self._is_closing:
                return
            self._is_closing = True
            try:
                await self._before_close()
                await self._client.__aexit__(kind, error, trace)
            finally:
                self._is_closed = True  # not earlier, because callbacks use the client while it closes

        self._thread.call(work)

    async def _before_close(self) -> None:
        pass

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(kind, error, trace)

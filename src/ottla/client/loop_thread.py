"""The event loop of the blocking clients: one daemon thread for all of them in a process.

They share it so that a producer's transaction can use a consumer's positions without a race.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from ottla.client.errors import ClientClosedError, ClientError

T = TypeVar("T")

INTERRUPT_GRACE_S = 5.0
"""How long an interrupted call may take to stop. A second interrupt does not wait for it."""


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name="ottla-client", daemon=True)
        self._thread.start()

    @property
    def is_of_this_process(self) -> bool:
        """False in a forked child process: threads stay with the parent."""
        return self._process == os.getpid()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]], give_back: Callable[[T], None] | None = None) -> T:
        """Runs a coroutine function on the loop and blocks until it is done. Returns or raises what it does.

        An exception in this thread meanwhile (KeyboardInterrupt) cancels the work and is raised once the work has
        stopped. If the work finishes nevertheless, `give_back` is called on the loop with the result that the caller
        does not get.
        """
        if threading.current_thread() is self._thread:
            raise ClientError("a blocking client cannot be used on its own event loop, for example in a serializer")
        if not self.is_of_this_process:
            raise ClientError("the client was created before this process was forked; create a new one in this process")
        running = _Call(work)
        try:
            self._loop.call_soon_threadsafe(running.begin)
            running.wait()
            return running.result()
        except BaseException as failure:
            if not running.raised(failure):
                self._loop.call_soon_threadsafe(running.cancel, give_back)
                running.wait_stopped(INTERRUPT_GRACE_S)
            raise


class _Call(Generic[T]):
    """One call. `begin` and `cancel` run on the loop; the other methods run in the calling thread."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._done = threading.Event()
        self._stopped = threading.Event()
        self._is_cancelled = False

    def begin(self) -> None:
        if not self._is_cancelled:
            self._task = asyncio.ensure_future(self._work())
            self._task.add_done_callback(lambda _: self._done.set())

    def cancel(self, give_back: Callable[[T], None] | None) -> None:
        self._is_cancelled = True
        if self._task is None:
            self._stopped.set()
            return
        self._task.cancel()
        self._task.add_done_callback(lambda task: self._stop(task, give_back))

    def _stop(self, task: asyncio.Task[T], give_back: Callable[[T], None] | None) -> None:
        try:
            if not task.cancelled() and task.exception() is None and give_back is not None:
                give_back(task.result())
        finally:
            self._stopped.set()

    def wait(self) -> None:
        self._done.wait()

    def wait_stopped(self, timeout_s: float) -> None:
        """Waits until the work has stopped after `cancel`."""
        self._stopped.wait(timeout_s)

    def result(self) -> T:
        assert self._task is not None
        if self._task.cancelled():
            raise ClientClosedError("the client was closed during the call")
        return self._task.result()

    def raised(self, failure: BaseException) -> bool:
        """Returns whether the work raised this exception, rather than the thread that waits for it."""
        task = self._task
        if task is None or not task.done():
            return False
        return isinstance(failure, ClientClosedError) if task.cancelled() else task.exception() is failure


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


_lock = threading.Lock()
_shared: LoopThread | None = None


def shared_loop_thread() -> LoopThread:
    """Returns the shared thread, started on first use. It ends with the process."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = LoopThread()
        return _shared


def _forget_after_fork() -> None:
    """Resets the shared thread: a child process has only the thread that forked."""
    global _lock, _shared
    _lock = threading.Lock()
    _shared = None


os.register_at_fork(after_in_child=_forget_after_fork)

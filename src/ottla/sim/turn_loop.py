"""The tasks and the errors of an event loop over virtual time: the part of asyncio's interface without the network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar, cast
from weakref import ref

from ottla.sim.host_time import HostTime
from ottla.sim.scheduler import ProcessHost, Scheduler
from ottla.sim.turns import Turns

T = TypeVar("T")
_TASK_REFS_KEPT = 200


class TurnLoop(Turns, asyncio.AbstractEventLoop):  # type: ignore[misc] # its handles are not asyncio's
    """An event loop without a network."""

    host: ProcessHost

    def __init__(self, scheduler: Scheduler, host: HostTime) -> None:
        super().__init__(scheduler, host)
        self.host = host
        self._task_count = 0
        self._tasks: list[ref[asyncio.Task[Any]]] = []
        self._exception_handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._task_factory: Any = None
        self._remains: tuple[list[asyncio.Task[Any]], object] | None = None
        scheduler.add_process(self)

    def __repr__(self) -> str:
        return f"<loop of {self.host.name}>"

    # -- life cycle ------------------------------------------------------------------------------------------

    def die(self) -> None:
        """Stops the loop immediately and permanently. Nothing is freed: see `Scheduler.add_process`."""
        if not self._dead:
            self._remains = (self.pending_tasks(), self._abandon())

    def close(self) -> None:
        """Closes the coroutines of a dead process, at the end of its world."""
        assert self._dead, "a process ends by SimHost.kill"
        if self._remains is not None:
            for task in self._remains[0]:
                task._log_destroy_pending = False  # type: ignore[attr-defined] # private to asyncio, not in the stubs
                with contextlib.suppress(BaseException):
                    cast(Coroutine[Any, Any, Any], task.get_coro()).close()
            self._remains = None

    def is_running(self) -> bool:
        """Returns whether the process is alive, also between two turns."""
        return not self._dead

    def is_closed(self) -> bool:
        """Returns whether the process is dead."""
        return self._dead

    def pending_tasks(self) -> list[asyncio.Task[Any]]:
        """Returns the unfinished tasks in order of creation."""
        tasks = [task for each in self._tasks if (task := each()) is not None and not task.done()]
        self._tasks = [ref(task) for task in tasks]
        return tasks

    def run_until_complete(self, future: Any) -> Any:
        """Runs the whole world until the future is done, and returns its result."""
        task = asyncio.ensure_future(future, loop=self)
        self.scheduler.run_until(task.done)
        return task.result()

    # -- tasks -----------------------------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        """Returns a future whose callbacks run in turns of this loop."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override] # the overloads in the stubs differ between Python versions
        self, coro: Coroutine[Any, Any, T], *, name: object = None, context: Context | None = None, **more: Any
    ) -> asyncio.Task[T]:
        """Starts a task. Tasks without a name are numbered per loop, so that a run can be repeated. A dead process
        closes the coroutine instead of running it."""
        self._task_count += 1
        if self._dead:
            coro.close()
        if name is None:
            name = f"task-{self._task_count}"
        if self._task_factory is not None:
            task: asyncio.Task[T] = self._task_factory(self, coro, context=context, **more)
            task.set_name(name)
        else:
            task = asyncio.Task(coro, loop=self, name=str(name), context=context, **more)
        if len(self._tasks) >= _TASK_REFS_KEPT:
            self.pending_tasks()
        self._tasks.append(ref(task))
        return task

    def set_task_factory(self, factory: Any) -> None:
        """Sets the factory for `create_task`; None means `asyncio.Task`."""
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        """Returns the factory for `create_task`, or None."""
        return self._task_factory

    def set_exception_handler(self, handler: Any) -> None:
        """Sets the handler of unhandled errors; None means the default handler, which fails the run."""
        self._exception_handler = handler

    def get_exception_handler(self) -> Any:
        """Returns the handler of unhandled errors, or None for the default."""
        return self._exception_handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Fails the run with the error."""
        self.scheduler.fail(self.host.name, str(context.get("message")), context.get("exception"))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Passes an unhandled error to the handler. Does nothing if the process is dead."""
        if self._dead:
            return
        if self._exception_handler is not None:
            self._exception_handler(self, context)
        else:
            self.default_exception_handler(context)

    def set_debug(self, enabled: bool) -> None:
        """Does nothing: the simulation has no debug mode."""
        return

    def end_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Closes a generator whose `async for` was left early, in a task of its own, as asyncio does."""
        if not self._dead:
            self.call_soon(self.create_task, generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        """Does nothing: a simulated process ends without clean-up."""
        return

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Does nothing: there are no threads."""
        return

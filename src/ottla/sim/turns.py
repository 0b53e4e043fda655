"""The turns, timers and tasks of an event loop over virtual time.

There is no selector and no thread. A turn runs whatever is ready, as asyncio's does, and then flushes what transports
have written. It takes a moment of virtual time, so that a busy process never stops the clock, and other processes run
in between. Callbacks of one loop keep their order; between loops the world's seed decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from asyncio.events import Handle, TimerHandle, _set_running_loop
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, cast
from weakref import ref

from ottla.sim.scheduler import ProcessHost, Scheduler

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TURN_S_MIN = 2e-6
TURN_S_SPREAD = 60e-6
RESOLUTION_S = 1e-9
NEVER = float("inf")
_TIMERS_KEPT = 200
_TASK_REFS_KEPT = 200


class TurnLoop(asyncio.AbstractEventLoop):
    """An event loop without a network.

    It is large because asyncio's interface is: each of its methods for callbacks, tasks, time and errors needs an
    implementation here, and all of them share the state of the current turn.
    """

    def __init__(self, scheduler: Scheduler, host: ProcessHost) -> None:
        self.scheduler = scheduler
        self.host = host
        self.is_paused = False
        self._dead = False
        self._in_turn = False
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, TimerHandle]] = []
        self._timer_count = 0
        self._timers_max = _TIMERS_KEPT
        self._wakes_at_s = NEVER
        """Virtual time of the next turn, if one is scheduled."""
        self._busy_until_s = 0.0
        self._turn_end: list[Callable[[], None]] = []
        self._task_count = 0
        self._tasks: list[ref[asyncio.Task[Any]]] = []
        self._exception_handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._task_factory: Any = None
        self._remains: tuple[list[asyncio.Task[Any]], object] | None = None
        scheduler.add_process(self)

    def __repr__(self) -> str:
        return f"<loop of {self.host.name}>"

    # -- turns -----------------------------------------------------------------------------------------------

    def _wake(self, at_s: float) -> None:
        at_s = max(at_s, self._busy_until_s, self.scheduler.now_s)
        if at_s < self._wakes_at_s and not self.is_paused and not self._dead:
            self._wakes_at_s = at_s
            self.scheduler.at(at_s, self._turn, at_s)

    def look_again(self) -> None:
        """Reschedules the next turn after something changed outside a turn."""
        if self._in_turn:
            return
        if self._ready or self._turn_end:
            self._wake(self.scheduler.now_s)
        elif (timer := self._next_timer()) is not None:
            self._wake(self.host.virtual_s(timer.when()))

    def _turn(self, at_s: float) -> None:
        if at_s != self._wakes_at_s or self._stands_still():
            return  # superseded by an earlier wake-up, or paused or dead by now
        self._wakes_at_s = NEVER
        scheduler = self.scheduler
        scheduler.enter(self)
        _set_running_loop(self)
        self._in_turn = True
        try:
            self._take_due_timers()
            ready = self._ready
            count = len(ready)
            for _ in range(count):
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
                if self._stands_still():
                    break
            else:
                self._end_turn()
            scheduler.note(f"{self.host.name} {count}")
        finally:
            self._in_turn = False
            _set_running_loop(None)
            scheduler.leave()
        self._busy_until_s = scheduler.now_s + TURN_S_MIN + scheduler.rng.random() * TURN_S_SPREAD
        if not self._dead:
            self.look_again()

    def _stands_still(self) -> bool:
        return self.is_paused or self._dead

    def _end_turn(self) -> None:
        callbacks, self._turn_end = self._turn_end, []
        for callback in callbacks:
            callback()

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        """Runs a callback after everything that is ready now, so that whatever transports write in one turn leaves
        together."""
        self._turn_end.append(callback)
        if not self._in_turn:
            self.look_again()

    def _take_due_timers(self) -> None:
        until_s = self.time() + RESOLUTION_S
        while (timer := self._next_timer()) is not None and timer.when() <= until_s:
            heapq.heappop(self._timers)
            self._ready.append(timer)

    def _next_timer(self) -> TimerHandle | None:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        return timers[0][2] if timers else None

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        """Called by asyncio's handles; does nothing."""

    def _drop_cancelled_timers(self) -> None:
        """Removes cancelled timers. Most timeouts are cancelled long before they are due, so this runs now and then."""
        self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
        heapq.heapify(self._timers)
        self._timers_max = 2 * len(self._timers) + _TIMERS_KEPT

    # -- life cycle ------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stops taking turns until `resume`. Events are queued meanwhile."""
        self.is_paused = True
        self._wakes_at_s = NEVER

    def resume(self) -> None:
        """Continues with everything that became ready or due during the pause."""
        self.is_paused = False
        self.look_again()

    def die(self) -> None:
        """Stops the loop immediately and permanently. Nothing is freed: see `Scheduler.add_process`."""
        if not self._dead:
            self._remains = (self.pending_tasks(), (self._ready, self._timers, self._turn_end))
            self._dead = True
            self._ready, self._timers, self._turn_end = deque(), [], []

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

    # -- callbacks, tasks and time -------------------------------------------------------------------------------

    def time(self) -> float:
        return self.host.monotonic_s()

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> Handle:
        """Runs a callback in the next turn. Does nothing if the process is dead."""
        handle = Handle(callback, args, self, context)
        if not self._dead:
            self._ready.append(handle)
            if not self._in_turn:
                self._wake(self.scheduler.now_s)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> TimerHandle:
        """Runs a callback after a delay in seconds of the host's monotonic clock."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> TimerHandle:
        """Runs a callback at a time of the host's monotonic clock. Does nothing if the process is dead."""
        handle = TimerHandle(when, callback, args, self, context)
        if not self._dead:
            self._timer_count += 1
            heapq.heappush(self._timers, (when, self._timer_count, handle))
            if len(self._timers) > self._timers_max:
                self._drop_cancelled_timers()
            if not self._in_turn:
                self.look_again()
        return handle

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

    def get_debug(self) -> bool:
        """Returns False: the simulation has no debug mode."""
        return False

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

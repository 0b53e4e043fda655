"""A simulated world: hosts that share one virtual time, a network between them, and one seed that makes all choices.

    with SimWorld(seed=7) as world:
        server = world.host("server", program=serve)      # async def serve(host): ...
        world.boot_all()
        world.run(client_work())                          # on a host of its own that never fails
        server.kill()
        world.run_for(5.0)
        server.boot()
        world.run_until(lambda: ..., timeout_s=60)

Everything is an event at some virtual time. No real time passes between two events, and nothing is left to chance:
the seed orders events of the same time. Anything unhandled (an exception in a callback, a task that failed unnoticed)
ends the run with an error, and so does a world in which nothing can happen any more.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import sys
from asyncio.events import _set_running_loop
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

from ottla.sim.ambient import ambient
from ottla.sim.hosts import WALL_START_S, Program, SimHost
from ottla.sim.loop import SimLoop
from ottla.sim.network import SimNetwork
from ottla.sim.trace import Trace

T = TypeVar("T")

TIMEOUT_S = 3600.0
EVENTS_A_COLLECTION = 200_000
"""Interval of garbage collections in events. They run at fixed points, because objects may report errors when freed."""


class SimulationError(Exception):
    """The run cannot continue, or has revealed a bug."""


class UnhandledError(SimulationError):
    """An exception that nobody handled."""


class DeadlockError(SimulationError):
    """Nothing is ready and no timer is set, so the condition can never become true."""


class VirtualTimeoutError(SimulationError):
    """The condition did not become true within its virtual time."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that nobody handled, and where it occurred."""

    host: str
    at_s: float
    message: str
    exception: BaseException | None

    def __str__(self) -> str:
        cause = f": {type(self.exception).__name__}: {self.exception}" if self.exception is not None else ""
        return f"at {self.at_s:.6f} s on {self.host}: {self.message}{cause}"


class WorldTimer:
    """A timer of WorldClock."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        if self._callback is not None:
            self._callback()


class WorldClock:
    """Implements `ports.Clock` for components that belong to no host and never fail, such as a simulated service."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world

    def now_ms(self) -> int:
        return int((WALL_START_S + self._world.now_s) * 1000)

    def monotonic_ms(self) -> float:
        return self._world.now_s * 1000

    def seconds(self) -> float:
        return self.monotonic_ms() / 1000

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> WorldTimer:
        timer = WorldTimer(callback)
        self._world.after(max(delay_ms, 0.0) / 1000, timer.fire)
        return timer

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._world.after(0.0, callback)


class SimWorld:
    """The world. Use it with `with`: inside, `time`, `random` and the like are virtual too (see `ambient`)."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.rng = Random(f"{seed}/world")
        self.now_s = 0.0
        self.running: SimLoop | None = None
        """The loop that is running its turn."""
        self.hosts: dict[str, SimHost] = {}
        self.trace = Trace(keep_all=keep_trace)
        self.failures: list[Failure] = []
        self.network = SimNetwork(self)
        self.clock = WorldClock(self)
        self.event_count = 0
        self._events: list[tuple[float, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._scheduled = 0
        self._loops: list[SimLoop] = []
        self._hooked: SimLoop | None = None
        """The loop that finalizes asynchronous generators now."""
        self._driven: list[asyncio.Task[Any]] = []
        self._driver: SimHost | None = None
        self._open = False
        self._stack = ExitStack()

    # -- life cycle ------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        assert not self._open, "a world is entered once"
        self._open = True
        stack = self._stack
        stack.callback(sys.set_asyncgen_hooks, *sys.get_asyncgen_hooks())
        if gc.isenabled():
            gc.disable()
            stack.callback(gc.enable)
        gc.freeze()  # skips everything that existed before, which makes a collection cheap
        stack.callback(gc.unfreeze)
        stack.enter_context(ambient(Random(f"{self.seed}/ambient"), self._wall_s, self._monotonic_s))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            gc.collect()  # tasks that failed unnoticed report it when they are freed
            failures = list(self.failures)
            self._dispose()
        finally:
            self._stack.close()
        if error is None and failures:
            self._raise(failures)

    def _dispose(self) -> None:
        """Frees all processes. They are all dead by then, so nothing a coroutine does while it is closed
        has an effect."""
        for loop in self._loops:
            loop.die()
        for loop in self._loops:
            loop.close()
        self._loops.clear()
        self._driven.clear()
        self._events.clear()
        gc.collect()

    def host(self, name: str, *, program: Program | None = None, skew_ms: float = 0, drift_ppm: float = 0) -> SimHost:
        """Adds a machine, switched off. `program` runs on it after each boot."""
        if name in self.hosts:
            raise ValueError(f"there is a host {name} already")
        host = self.hosts[name] = SimHost(self, name, program, skew_ms=skew_ms, drift_ppm=drift_ppm)
        return host

    def boot_all(self) -> None:
        for host in list(self.hosts.values()):
            if not host.is_running:
                host.boot()

    @property
    def driver(self) -> SimHost:
        """The host of the test itself. Fault plans do not affect it."""
        if self._driver is None:
            self._driver = self.host("driver")
            self._driver.boot()
        return self._driver

    # -- events ----------------------------------------------------------------------------------------------

    def at(self, time_s: float, callback: Callable[..., None], *args: object) -> None:
        """Schedules an event. The seed decides the order of events of the same time."""
        self._scheduled += 1
        heapq.heappush(self._events, (time_s, self.rng.random(), self._scheduled, callback, args))

    def after(self, delay_s: float, callback: Callable[..., None], *args: object) -> None:
        self.at(self.now_s + delay_s, callback, *args)

    def note(self, text: str) -> None:
        self.trace.note(self.now_s, text)

    def fail(self, host: str, message: str, exception: BaseException | None) -> None:
        """Records a failure, which ends the run as soon as possible."""
        self.failures.append(Failure(host, self.now_s, message, exception))

    def add_loop(self, loop: SimLoop) -> None:
        """Keeps a process until the end of the world: freeing a dead process would run its `finally` blocks."""
        self._loops.append(loop)

    # -- running ---------------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float = TIMEOUT_S) -> T:
        """Runs a coroutine on the driver's host until it ends, and everything else meanwhile."""
        task = self.driver.loop.create_task(work, name="driver")
        self._driven.append(task)
        self.run_until(task.done, timeout_s=timeout_s)
        self._driven.remove(task)
        return task.result()

    def run_for(self, duration_s: float) -> None:
        until_s = self.now_s + duration_s
        events = self._events
        while events and events[0][0] <= until_s:
            self._step()
        self.now_s = until_s

    def run_until(self, is_reached: Callable[[], bool], *, timeout_s: float = TIMEOUT_S) -> None:
        """Runs until the condition holds; it is checked after each event."""
        deadline_s = self.now_s + timeout_s
        events = self._events
        while not is_reached():
            if not events:
                raise DeadlockError(f"nothing can happen any more at {self.now_s:.3f} s;{self._pending_text()}")
            if events[0][0] > deadline_s:
                raise VirtualTimeoutError(f"not within {timeout_s} s of virtual time;{self._pending_text()}")
            self._step()

    def _step(self) -> None:
        if not self._open:
            raise SimulationError("enter the world first: with SimWorld(seed) as world")
        time_s, _, _, callback, args = heapq.heappop(self._events)
        if time_s > self.now_s:
            self.now_s = time_s
        callback(*args)
        self.event_count += 1
        if self.event_count % EVENTS_A_COLLECTION == 0:
            gc.collect()
        if self.failures:
            failures, self.failures = self.failures, []
            self._raise(failures)

    def enter_loop(self, loop: SimLoop) -> None:
        if self.running is not None or asyncio._get_running_loop() is not None:
            raise SimulationError("a loop runs already: a world is driven by plain code, not by a coroutine")
        self.running = loop
        _set_running_loop(loop)
        if self._hooked is not loop:
            self._hooked = loop
            sys.set_asyncgen_hooks(finalizer=loop.end_generator)

    def leave_loop(self) -> None:
        self.running = None
        _set_running_loop(None)

    def _raise(self, failures: list[Failure]) -> None:
        text = "; ".join(map(str, failures))
        raise UnhandledError(f"seed {self.seed}: {text}") from failures[0].exception

    def _pending_text(self) -> str:
        lines = [line for host in self.hosts.values() for line in host.pending_tasks()]
        return " pending:\n  " + "\n  ".join(lines) if lines else " no task is pending"

    # -- the process's clocks ----------------------------------------------------------------------------------

    def _wall_s(self) -> float:
        return WALL_START_S + self.now_s if self.running is None else self.running.host.wall_s()

    def _monotonic_s(self) -> float:
        return self.now_s if self.running is None else self.running.time()

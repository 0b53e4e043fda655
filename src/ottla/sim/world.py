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
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

from ottla.sim.ambient import ambient
from ottla.sim.hosts import WALL_START_S, Program, SimHost
from ottla.sim.network import SimNetwork
from ottla.sim.scheduler import (
    TIMEOUT_S,
    DeadlockError,
    Scheduler,
    SimulationError,
    UnhandledError,
    VirtualTimeoutError,
)

__all__ = ["DeadlockError", "SimWorld", "SimulationError", "UnhandledError", "VirtualTimeoutError"]

T = TypeVar("T")


class WorldTimer:
    """Implements `ports.Timer` for WorldClock."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        """Runs the callback, unless the timer was cancelled."""
        if self._callback is not None:
            self._callback()


class WorldClock:
    """Implements `ports.Clock` for components that belong to no host and never fail, such as a simulated service."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def now_ms(self) -> int:
        return int((WALL_START_S + self._scheduler.now_s) * 1000)

    def monotonic_ms(self) -> float:
        return self._scheduler.now_s * 1000

    def seconds(self) -> float:
        return self.monotonic_ms() / 1000

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> WorldTimer:
        timer = WorldTimer(callback)
        self._scheduler.after(max(delay_ms, 0.0) / 1000, timer.fire)
        return timer

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._scheduler.after(0.0, callback)


class SimWorld(Scheduler):
    """The world. Use it with `with`: inside, `time`, `random` and the like are virtual too (see `ambient`)."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        super().__init__(seed, keep_trace=keep_trace)
        self.hosts: dict[str, SimHost] = {}
        self.network = SimNetwork(self, self.hosts)
        self.clock = WorldClock(self)
        self._driven: list[asyncio.Task[Any]] = []
        self._driver: SimHost | None = None
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
        if not gc.get_freeze_count():  # a process that runs many worlds freezes once, before the first of them
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
            self._end_processes()
            self._driven.clear()
            gc.collect()
        finally:
            self._stack.close()
        if error is None and failures:
            self._raise(failures)

    def host(self, name: str, *, program: Program | None = None, skew_ms: float = 0, drift_ppm: float = 0) -> SimHost:
        """Adds a machine, switched off. `program` runs on it after each boot."""
        if name in self.hosts:
            raise ValueError(f"there is a host {name} already")
        host = self.hosts[name] = SimHost(self, self.network, name, program, skew_ms=skew_ms, drift_ppm=drift_ppm)
        return host

    def boot_all(self) -> None:
        """Boots every host that has no process."""
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

    # -- running ---------------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float = TIMEOUT_S) -> T:
        """Runs a coroutine on the driver's host until it ends, and everything else meanwhile."""
        task = self.driver.loop.create_task(work, name="driver")
        self._driven.append(task)
        self.run_until(task.done, timeout_s=timeout_s)
        self._driven.remove(task)
        return task.result()

    def _pending_text(self) -> str:
        lines = [line for host in self.hosts.values() for line in host.pending_tasks()]
        return " pending:\n  " + "\n  ".join(lines) if lines else " no task is pending"

    # -- the process's clocks ----------------------------------------------------------------------------------

    def _wall_s(self) -> float:
        return WALL_START_S + self.now_s if self.running is None else self.running.host.wall_s()

    def _monotonic_s(self) -> float:
        return self.now_s if self.running is None else self.running.time()

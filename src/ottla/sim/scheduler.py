"""The scheduler of a simulated world: virtual time, its events, the seed that orders them, and the trace.

It knows no hosts and no network. Those schedule their events here, and processes take their turns here.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any, Protocol

from ottla.sim.trace import Trace

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


class ProcessHost(Protocol):
    """The machine of a process: its name and its wall clock."""

    @property
    def name(self) -> str:
        """The name of the host in the world."""
        ...

    @property
    def incarnation(self) -> int:
        """Number of processes that the host has started so far."""
        ...

    def wall_s(self) -> float:
        """Returns the time of the host's wall clock, in seconds since 1970."""
        ...


class Process(Protocol):
    """The event loop of a process, as the scheduler sees it."""

    @property
    def host(self) -> ProcessHost:
        """The host on which the process runs."""
        ...

    def time(self) -> float:
        """Returns the time of the host's monotonic clock, in seconds."""
        ...

    def end_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Closes an asynchronous generator that was left before its end."""
        ...

    def die(self) -> None:
        """Stops the process immediately and permanently. Frees nothing."""
        ...

    def close(self) -> None:
        """Closes the coroutines of a dead process, at the end of the world."""
        ...


class Scheduler:
    """Runs events in the order of virtual time. Everything that happens in a world is an event."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.rng = Random(f"{seed}/world")
        self._random = self.rng.random
        self.now_s = 0.0
        self.running: Process | None = None
        """The process that is running its turn."""
        self.trace = Trace()
        if keep_trace:
            self.trace.start(keep_all=True)
        self.failures: list[Failure] = []
        self.event_count = 0
        self._events: list[tuple[float, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._scheduled = 0
        self._processes: list[Process] = []
        self._hooked: Process | None = None
        """The process that finalizes asynchronous generators now."""
        self._open = False

    # -- events ----------------------------------------------------------------------------------------------

    def at(self, time_s: float, callback: Callable[..., None], *args: object) -> None:
        """Schedules an event. The seed decides the order of events of the same time."""
        self._schedule(time_s, callback, args)

    def _schedule(self, time_s: float, callback: Callable[..., None], args: tuple[object, ...]) -> None:
        self._scheduled += 1
        heappush(self._events, (time_s, self._random(), self._scheduled, callback, args))

    def after(self, delay_s: float, callback: Callable[..., None], *args: object) -> None:
        """Schedules an event after a delay in virtual time."""
        self._schedule(self.now_s + delay_s, callback, args)

    def note(self, text: str) -> None:
        """Adds a line to the trace, at the current virtual time."""
        self.trace.note(self.now_s, text)

    def fail(self, host: str, message: str, exception: BaseException | None) -> None:
        """Records a failure, which ends the run as soon as possible."""
        self.failures.append(Failure(host, self.now_s, message, exception))

    # -- running ---------------------------------------------------------------------------------------------

    def run_for(self, duration_s: float) -> None:
        """Runs all events of the next `duration_s` seconds of virtual time. Raises UnhandledError."""
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
        time_s, _, _, callback, args = heappop(self._events)
        if time_s > self.now_s:
            self.now_s = time_s
        callback(*args)
        self.event_count += 1
        if self.event_count % EVENTS_A_COLLECTION == 0:
            gc.collect()
        if self.failures:
            failures, self.failures = self.failures, []
            self._raise(failures)

    def _raise(self, failures: list[Failure]) -> None:
        text = "; ".join(map(str, failures))
        raise UnhandledError(f"seed {self.seed}: {text}") from failures[0].exception

    def _pending_text(self) -> str:
        """Describes the work that is unfinished, for the message of an error."""
        return ""

    # -- processes -------------------------------------------------------------------------------------------

    def add_process(self, process: Process) -> None:
        """Keeps a process until the end of the world: freeing a dead process would run its `finally` blocks."""
        self._processes.append(process)

    def enter(self, process: Process) -> None:
        """Begins the turn of a process."""
        if self.running is not None or asyncio._get_running_loop() is not None:
            raise SimulationError("a loop runs already: a world is driven by plain code, not by a coroutine")
        self.running = process
        if self._hooked is not process:
            self._hooked = process
            sys.set_asyncgen_hooks(finalizer=process.end_generator)

    def leave(self) -> None:
        """Ends the turn of the running process."""
        self.running = None

    def _end_processes(self) -> None:
        """Closes all processes. They are all dead by then, so nothing a coroutine does while it is closed
        has an effect."""
        for process in self._processes:
            process.die()
        for process in self._processes:
            process.close()
        self._processes.clear()
        self._events.clear()

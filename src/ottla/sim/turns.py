"""The turns and timers of an event loop over virtual time.

There is no selector and no thread. A turn runs whatever is ready, as asyncio's does, and then flushes what transports
have written. It takes a moment of virtual time, so that a busy process never stops the clock, and other processes run
in between. Callbacks of one loop keep their order; between loops the world's seed decides.
"""

from __future__ import annotations

from asyncio import format_helpers
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from typing import Any

from ottla.sim.host_time import HostTime
from ottla.sim.scheduler import Scheduler

TURN_S_MIN = 2e-6
TURN_S_SPREAD = 60e-6
RESOLUTION_S = 1e-9
NEVER = float("inf")
TIMERS_KEPT = 200


class Callback:
    """A callback that waits for its turn. It has the interface of `asyncio.Handle`."""

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> None:
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._is_cancelled = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._text()}>"

    def _text(self) -> str:
        if self._callback is None:
            return "cancelled"
        return format_helpers._format_callback_source(self._callback, self._args)

    def get_context(self) -> Context:
        """Returns the context in which the callback runs."""
        return self._context

    def cancel(self) -> None:
        """Drops the callback."""
        self._is_cancelled = True
        self._callback = None
        self._args = ()

    def cancelled(self) -> bool:
        """Returns whether the callback was cancelled."""
        return self._is_cancelled

    def _run(self, turns: Turns) -> None:
        """Runs the callback. Anything that it raises goes to the loop's handler, as in asyncio."""
        callback = self._callback
        assert callback is not None
        try:
            self._context.run(callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            message = f"Exception in callback {self._text()}"
            turns.call_exception_handler({"message": message, "exception": error, "handle": self})


class TimerCallback(Callback):
    """A callback that runs at a time of the host's monotonic clock. It has the interface of `asyncio.TimerHandle`."""

    def __init__(
        self, when_s: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        super().__init__(callback, args, context)
        self._when_s = when_s

    def when(self) -> float:
        """Returns the time at which the callback is due."""
        return self._when_s


class Turns:
    """The part of an event loop that runs callbacks and timers."""

    def __init__(self, scheduler: Scheduler, host: HostTime) -> None:
        self.scheduler = scheduler
        self.is_paused = False
        self._host_time = host
        self._dead = False
        self._in_turn = False
        self._ready: deque[Callback] = deque()
        self._timers: list[tuple[float, int, TimerCallback]] = []
        self._timer_count = 0
        self._timers_max = TIMERS_KEPT
        self._wakes_at_s = NEVER
        """Virtual time of the next turn, if one is scheduled."""
        self._busy_until_s = 0.0
        self._turn_end: list[Callable[[], None]] = []

    # -- turns -----------------------------------------------------------------------------------------------

    def _wake(self, at_s: float) -> None:
        at_s = max(at_s, self._busy_until_s, self.scheduler.now_s)
        if at_s < self._wakes_at_s and not self.is_paused and not self._dead:
            self._wakes_at_s = at_s
            self.scheduler._schedule(at_s, self._turn, (at_s,))

    def look_again(self) -> None:
        """Reschedules the next turn after something changed outside a turn."""
        if self._in_turn:
            return
        if self._ready or self._turn_end:
            self._wake(self.scheduler.now_s)
        elif (timer := self._next_timer()) is not None:
            self._wake(self._host_time.virtual_s(timer._when_s))

    def _turn(self, at_s: float) -> None:
        if at_s != self._wakes_at_s or self.is_paused or self._dead:
            return  # superseded by an earlier wake-up, or paused or dead by now
        self._wakes_at_s = NEVER
        scheduler = self.scheduler
        scheduler.enter(self)  # type: ignore[arg-type] # every Turns is a TurnLoop
        _set_running_loop(self)  # type: ignore[arg-type] # as above
        self._in_turn = True
        try:
            self._take_due_timers()
            ready = self._ready
            count = len(ready)
            for _ in range(count):
                handle = ready.popleft()
                if not handle._is_cancelled:
                    handle._run(self)
                if self.is_paused or self._dead:  # type: ignore[redundant-expr] # the callback may have changed them
                    break
            else:
                self._end_turn()
            if scheduler.trace.is_recorded:
                scheduler.note(f"{self._host_time.name} {count}")
        finally:
            self._in_turn = False
            _set_running_loop(None)
            scheduler.leave()
        self._busy_until_s = scheduler.now_s + TURN_S_MIN + scheduler._random() * TURN_S_SPREAD
        if not self._dead:
            self.look_again()

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
        until_s = self._host_time.monotonic_s() + RESOLUTION_S
        while (timer := self._next_timer()) is not None and timer._when_s <= until_s:
            heappop(self._timers)
            self._ready.append(timer)

    def _next_timer(self) -> TimerCallback | None:
        timers = self._timers
        while timers:
            timer = timers[0][2]
            if not timer._is_cancelled:
                return timer
            heappop(timers)
        return None

    def _drop_cancelled_timers(self) -> None:
        """Removes cancelled timers. Most timeouts are cancelled long before they are due, so this runs now and then."""
        self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
        heapify(self._timers)
        self._timers_max = 2 * len(self._timers) + TIMERS_KEPT

    def pause(self) -> None:
        """Stops taking turns until `resume`. Events are queued meanwhile."""
        self.is_paused = True
        self._wakes_at_s = NEVER

    def resume(self) -> None:
        """Continues with everything that became ready or due during the pause."""
        self.is_paused = False
        self.look_again()

    def _abandon(self) -> object:
        """Stops taking turns permanently. Returns what was pending, for the caller to keep."""
        pending = (self._ready, self._timers, self._turn_end)
        self._dead = True
        self._ready, self._timers, self._turn_end = deque(), [], []
        return pending

    # -- callbacks and time ----------------------------------------------------------------------------------

    def time(self) -> float:
        """Returns the time of the host's monotonic clock, in seconds."""
        return self._host_time.monotonic_s()

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Callback:
        """Runs a callback in the next turn. Does nothing if the process is dead."""
        return self._call_soon(callback, args, context)

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Callback:
        """Runs a callback in the next turn: a simulated process has no threads."""
        return self._call_soon(callback, args, context)

    def _call_soon(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> Callback:
        handle = Callback(callback, args, context)
        if not self._dead:
            self._ready.append(handle)
            if not self._in_turn:
                self._wake(self.scheduler.now_s)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerCallback:
        """Runs a callback after a delay in seconds of the host's monotonic clock."""
        return self._call_at(self._host_time.monotonic_s() + delay, callback, args, context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerCallback:
        """Runs a callback at a time of the host's monotonic clock. Does nothing if the process is dead."""
        return self._call_at(when, callback, args, context)

    def _call_at(
        self, when_s: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> TimerCallback:
        handle = TimerCallback(when_s, callback, args, context)
        if not self._dead:
            self._timer_count += 1
            heappush(self._timers, (when_s, self._timer_count, handle))
            if len(self._timers) > self._timers_max:
                self._drop_cancelled_timers()
            if not self._in_turn:
                self.look_again()
        return handle

    def get_debug(self) -> bool:
        """Returns False: the simulation has no debug mode."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Handles an error that a callback raised."""
        raise NotImplementedError


class HostClock:
    """Implements `ports.Clock` for one process."""

    def __init__(self, host: HostTime, turns: Turns) -> None:
        self._host = host
        self._turns = turns

    def now_ms(self) -> int:
        return int(self._host.wall_s() * 1000)

    def monotonic_ms(self) -> float:
        return self._host.monotonic_s() * 1000

    def seconds(self) -> float:
        return self._host.monotonic_s() * 1000 / 1000

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> TimerCallback:
        at_s = self._host.monotonic_s() + max(delay_ms, 0.0) / 1000
        return self._turns._call_at(at_s, callback, (), None)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._turns._call_soon(callback, (), None)

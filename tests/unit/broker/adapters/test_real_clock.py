"""The operating system's clock and the event loop's timers fulfil the contract of `ports.Clock`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
import uvloop

from ottla.broker.adapters.clock import RealClock

TIMERS = 200


async def earliest_ms() -> float:
    """Returns how long after its delay the earliest of many timers fired; negative if before."""
    rng, clock = random.Random(1), RealClock(asyncio.get_running_loop())
    lateness_ms: list[float] = []
    all_fired = asyncio.get_running_loop().create_future()

    def fired(due_ms: float) -> None:
        lateness_ms.append(clock.monotonic_ms() - due_ms)
        if len(lateness_ms) == TIMERS:
            all_fired.set_result(None)

    for _ in range(TIMERS):
        delay_ms = rng.uniform(0.01, 60)
        due_ms = clock.monotonic_ms() + delay_ms
        clock.call_later(delay_ms, partial(fired, due_ms))
        await asyncio.sleep(rng.choice([0, 0.0003]))
    await all_fired
    return min(lateness_ms)


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_no_timer_is_early(run: Callable[[Coroutine[Any, Any, float]], float]) -> None:
    """A lease ends at its deadline, and a clock read at that time must agree."""
    assert run(earliest_ms()) >= 0


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_no_delay_is_the_next_turn(run: Callable[[Coroutine[Any, Any, bool]], bool]) -> None:
    async def fires() -> bool:
        fired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        RealClock(asyncio.get_running_loop()).call_later(-5.0, lambda: fired.set_result(None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return fired.done()

    assert run(fires())

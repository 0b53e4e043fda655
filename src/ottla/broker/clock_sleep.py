"""Sleeping on the broker's clock, which a simulation may drive."""

from __future__ import annotations

import asyncio

from ottla.ports import Clock


async def sleep(clock: Clock, delay_ms: float) -> None:
    """Waits for the delay, by the given clock."""
    woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    timer = clock.call_later(delay_ms, wake)
    try:
        await woken
    finally:
        timer.cancel()

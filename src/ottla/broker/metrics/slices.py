"""Runs long work on the event loop a slice at a time."""

from __future__ import annotations

import asyncio
import time

SLICE_S = 0.001


class Slices:
    """Yields to the event loop when the current slice is used up."""

    __slots__ = ("_ends_s",)

    def __init__(self) -> None:
        self._ends_s = time.perf_counter() + SLICE_S

    async def give_way(self) -> None:
        """Lets other tasks run if the slice has lasted long enough."""
        if time.perf_counter() >= self._ends_s:
            await asyncio.sleep(0)
            self._ends_s = time.perf_counter() + SLICE_S

"""Hands out producer ids from a block that was reserved durably, so that no id is given out twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ottla.protocol.model.errors import Refused

BLOCK_SIZE = 1000


class ProducerIds:
    """Allocates producer ids."""

    def __init__(self, reserve: Callable[[int], Awaitable[int | Refused]]) -> None:
        """`reserve` reserves a number of consecutive ids and returns the first."""
        self._reserve = reserve
        self._next_id = 0
        self._block_end = 0
        self._reserving = asyncio.Lock()

    async def allocate(self) -> int | Refused:
        """Returns a producer id that no other producer has."""
        async with self._reserving:
            if self._next_id >= self._block_end:
                first = await self._reserve(BLOCK_SIZE)
                if isinstance(first, Refused):
                    return first
                self._next_id, self._block_end = first, first + BLOCK_SIZE
            self._next_id += 1
            return self._next_id - 1

"""The producer's buffer, counted in bytes: who sends faster than the brokers acknowledge has to wait."""

from __future__ import annotations

import asyncio


class Room:
    """Records are taken in while there is any room, so it is exceeded by one record at most."""

    def __init__(self, bytes_max: int) -> None:
        self.used_bytes = 0
        self._bytes_max = bytes_max
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def is_full(self) -> bool:
        return self.used_bytes >= self._bytes_max

    def take(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        if self._waiting and not self.is_full:
            self.wake_all()

    def wake_all(self) -> None:
        """Whoever waits looks again, in the order of arrival."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Until some room was given back; there may be none left when this returns."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

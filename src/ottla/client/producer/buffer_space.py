"""The producer's buffer, counted in bytes: senders that are faster than the brokers' acknowledgements have to wait."""

from __future__ import annotations

import asyncio


class BufferSpace:
    """Accepts records while there is any room, so it is exceeded by at most one record."""

    def __init__(self, bytes_max: int) -> None:
        self.used_bytes = 0
        self._bytes_max = bytes_max
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def is_full(self) -> bool:
        """Whether senders have to wait."""
        return self.used_bytes >= self._bytes_max

    def take(self, size_bytes: int) -> None:
        """Counts the bytes of a buffered record."""
        self.used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Releases bytes and wakes waiting senders."""
        self.used_bytes -= size_bytes
        if self._waiting and not self.is_full:
            self.wake_all()

    def wake_all(self) -> None:
        """Wakes all waiting senders, in order of arrival."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Waits until bytes are released. The buffer may be full again when this returns."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

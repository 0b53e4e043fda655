"""The stores under test. A world is one store with nothing in it, and as many clients as a test asks for."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from pathlib import Path

from ottla.adapters.clock import RealClock
from ottla.coordination.port import Coordination, Put
from ottla.coordination.sqlite import History, SqliteCoordination
from ottla.ports import Clock

HISTORY_MAX = 20
"""Of clients that are to forget their history, where clients decide about it."""


class World(ABC):
    ttl_ms: int
    """The shortest lease that this store grants, near enough."""

    def __init__(self) -> None:
        self.clock: Clock = RealClock(asyncio.get_running_loop())
        self._clients: list[Coordination] = []

    async def client(self) -> Coordination:
        client = await self._connect()
        self._clients.append(client)
        return client

    async def sleep(self, ms: float) -> None:
        await asyncio.sleep(ms / 1000)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    @abstractmethod
    async def _connect(self) -> Coordination: ...

    @abstractmethod
    async def forget_history(self) -> None:
        """Watches that are to begin at an older revision than now are too late."""


class SqliteWorld(World):
    ttl_ms = 500

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory

    async def _connect(self) -> Coordination:
        return await SqliteCoordination.open(str(self.directory), self.clock)

    async def forget_history(self) -> None:
        short = History(revisions_max=HISTORY_MAX)
        client = await SqliteCoordination.open(str(self.directory), self.clock, history=short)
        await write_past_history(client)
        await client.close()


async def write_past_history(client: Coordination) -> None:
    for number in range(HISTORY_MAX + 2):
        await client.commit([], [Put("unrelated", b"%d" % number)])

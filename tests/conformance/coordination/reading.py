"""Readers of watches: a task that collects batches and signals when it has enough."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

from ottla.coordination.port import Batch, Coordination, Resync, Revision

TIMEOUT_S = 20.0


class Reader:
    """The batches that a watch has delivered so far."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.resync = False
        self.ended = False
        self._more = asyncio.Event()

    def __str__(self) -> str:
        last = self.batches[-1].revision if self.batches else None
        return f"{len(self.batches)} batches, the last of revision {last}, resync {self.resync}, ended {self.ended}"

    async def follow(self, client: Coordination, prefix: str, after: Revision) -> None:
        async with aclosing(client.watch(prefix, after)) as watch:
            async for found in watch:
                if isinstance(found, Resync):
                    self.resync = True
                else:
                    self.batches.append(found)
                self._more.set()
        self.ended = True
        self._more.set()

    async def until(self, enough: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while not enough():
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"the watch brought no more in {TIMEOUT_S} s: {self}") from None

    async def until_revision(self, revision: Revision) -> None:
        await self.until(lambda: bool(self.batches) and self.batches[-1].revision >= revision)

    def deleted_keys(self) -> list[str]:
        return [change.key for batch in self.batches for change in batch.changes if change.entry is None]


@asynccontextmanager
async def reader_of(client: Coordination, prefix: str = "", after: Revision | None = None) -> AsyncIterator[Reader]:
    """Follows from the given revision, or from now."""
    reader = Reader()
    if after is None:
        after = (await client.snapshot(prefix)).revision
    task = asyncio.create_task(reader.follow(client, prefix, after))
    try:
        yield reader
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

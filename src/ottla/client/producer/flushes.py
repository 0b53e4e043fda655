"""Waits until certain batches are settled, that is, acknowledged or failed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ottla.client.producer.batches import Batch


class Flushes:
    """All pending waits of a producer."""

    def __init__(self) -> None:
        self._waits: list[tuple[set[Batch], asyncio.Future[None]]] = []

    async def settled_all(self, batches: Iterable[Batch]) -> None:
        """Waits until all these batches are settled."""
        waiting = set(batches)
        if waiting:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waits.append((waiting, done))
            await done

    def settled(self, batch: Batch) -> None:
        """Marks a batch as settled."""
        if not self._waits:
            return
        for waiting, done in self._waits:
            waiting.discard(batch)
            if not waiting and not done.done():
                done.set_result(None)
        self._waits = [each for each in self._waits if each[0] and not each[1].done()]

    def cut(self, batch: Batch, halves: Iterable[Batch]) -> None:
        """Replaces a batch by its halves in all pending waits."""
        for waiting, _ in self._waits:
            if batch in waiting:
                waiting.remove(batch)
                waiting.update(halves)

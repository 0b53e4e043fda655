"""Reserves offsets for memory logs in the catalog of a single broker.

The content of a memory log is gone after a restart. It continues above every offset that it may have assigned
(safety: memory-loss), so it assigns only offsets that the catalog has reserved.
"""

from __future__ import annotations

import asyncio

from ottla.broker.context import BrokerContext
from ottla.broker.standalone.catalog import CatalogAccess
from ottla.broker.storage.memory_log import MemoryLog
from ottla.broker.topics.topics import Topic
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.ids import TopicId

OFFSETS_RESERVED = 10_000_000


class OffsetReservations:
    """Keeps reservations ahead of the memory logs of a broker."""

    def __init__(self, context: BrokerContext, catalog: CatalogAccess) -> None:
        self._context = context
        self._catalog = catalog
        self._reserving = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._failure = ""
        """The failure of the last reservation, so that a lasting one is reported once."""

    def check(self) -> None:
        """Begins a reservation if a log is running out of offsets."""
        if self._task is None and self._are_running_out():
            self._task = asyncio.ensure_future(self.reserve())
            self._task.add_done_callback(self._on_reserved)

    async def reserve(self, new: Topic | None = None) -> None:
        """Reserves offsets. `new` is a topic that is not visible yet. Raises OSError if the catalog cannot be
        written."""
        async with self._reserving:
            wanted = self._wanted(new)
            if wanted:
                ends = _ends(wanted)
                await self._catalog.run(lambda catalog: catalog.reserve_offsets(ends))
                _grant(wanted)

    def reserve_blocking(self) -> None:
        """Reserves offsets at start-up. If this fails, memory logs refuse records until a later check succeeds."""
        wanted = self._wanted()
        if wanted:
            ends = _ends(wanted)
            try:
                self._context.store.with_reserve(lambda: self._catalog.blocking.reserve_offsets(ends))
            except OSError as error:
                self._context.shared.report(f"memory topics do not accept records yet: {error}")
                return
            _grant(wanted)

    def _on_reserved(self, done: asyncio.Task[None]) -> None:
        """Reports a failed reservation. A later check tries again."""
        self._task = None
        if done.cancelled():
            return
        error = done.exception()
        failure = "" if error is None else str(error) or repr(error)
        if failure and failure != self._failure:
            self._context.shared.report(f"cannot reserve offsets for memory topics: {failure}")
        self._failure = failure

    def _memory_logs(self, new: Topic | None = None) -> list[MemoryLog]:
        topics = [*self._context.topics, *([new] if new is not None else [])]
        return [
            partition.log
            for topic in topics
            if topic.config.durability is Durability.MEMORY
            for partition in topic.partitions
            if isinstance(partition.log, MemoryLog)
        ]

    def _are_running_out(self) -> bool:
        return any(_is_running_out(log) for log in self._memory_logs())

    def _wanted(self, new: Topic | None = None) -> dict[MemoryLog, int]:
        return {log: log.end_offset + OFFSETS_RESERVED for log in self._memory_logs(new) if _is_running_out(log)}


def _is_running_out(log: MemoryLog) -> bool:
    return log.end_offset + OFFSETS_RESERVED // 2 > log.reserved_end


def _ends(wanted: dict[MemoryLog, int]) -> dict[tuple[TopicId, int], int]:
    return {(log.key.topic_id, int(log.key.partition)): end for log, end in wanted.items()}


def _grant(wanted: dict[MemoryLog, int]) -> None:
    for log, end in wanted.items():
        log.reserved_end = end

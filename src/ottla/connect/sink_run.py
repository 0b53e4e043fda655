"""Drives a sink: fetch, put and commit, until it is stopped or, with `until_end`, reaches the end of the topics.

The target stores the offsets to resume from, so the sink needs no consumer group.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from ottla.client import Consumer
from ottla.client.consumer.types import ConsumerRecord, TopicPartition
from ottla.connect.configuration import ConnectorConfig
from ottla.connect.contract import Sink
from ottla.connect.dead_letters import DeadLetterTopic
from ottla.connect.failures import NeedsHelpError

Report = Callable[[dict[str, Any]], None]
FETCH_RECORDS = 5_000
FETCH_WAIT_MS = 500


async def run_sink(config: ConnectorConfig, sink: Sink, stopping: asyncio.Event, report: Report) -> None:
    """Runs the sink until `stopping` is set. Raises if it cannot continue."""
    dead_letters = DeadLetterTopic(config.bootstrap, config.name, config.settings.get("dead_letters"))
    consumer = Consumer(
        config.bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="none",
        max_partition_fetch_bytes=8 * 1024 * 1024,
        buffer_bytes_per_partition=16 * 1024 * 1024,
        client_id=f"ottla-connect-{config.name}",
    )
    try:
        async with consumer:
            known = await sink.start(dead_letters.put)
            ends = await _assign(consumer, sink, known)
            until = ends if config.settings.get("until_end") else None
            commit_every_s = float(config.settings.get("commit_every_s", 1.0))
            await _Drive(consumer, sink, dead_letters, commit_every_s, until, report).run(stopping)
    finally:
        await sink.stop()
        await dead_letters.close()


async def _assign(consumer: Consumer, sink: Sink, known: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
    """Seeks each partition to the offset that the target has recorded, and returns the end offsets.

    Raises NeedsHelpError if the log no longer has that offset.
    """
    partitions = [each for topic in sink.topics for each in await consumer.partitions(topic)]
    begins, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    consumer.assign(partitions)
    for each in partitions:
        wanted = known.get(each, begins[each] if sink.may_begin_late else 0)
        if wanted < begins[each]:
            raise NeedsHelpError(
                f"{each} starts at offset {begins[each]}, but this sink is at {wanted}: the records between "
                "were deleted. Fill the target again under another --name"
            )
        if wanted > ends[each]:
            raise NeedsHelpError(
                f"{each} ends at offset {ends[each]}, but this sink is at {wanted}: the topic was deleted and "
                "created again, or this is another cluster. Fill the target again under another --name"
            )
        consumer.seek(each, wanted)
    return ends


class _Drive:
    """The loop that fetches, puts and commits."""

    def __init__(
        self,
        consumer: Consumer,
        sink: Sink,
        dead_letters: DeadLetterTopic,
        commit_every_s: float,
        until: Mapping[TopicPartition, int] | None,
        report: Report,
    ) -> None:
        self._consumer = consumer
        self._sink = sink
        self._dead_letters = dead_letters
        self._commit_every_s = commit_every_s
        self._until = until
        self._report = report
        self._records = 0
        self._committed_s = time.monotonic()

    async def run(self, stopping: asyncio.Event) -> None:
        stopped = asyncio.ensure_future(stopping.wait())
        fetching = asyncio.ensure_future(self._fetch())
        try:
            while not stopping.is_set():
                await asyncio.wait([fetching, stopped], return_when=asyncio.FIRST_COMPLETED)
                if not fetching.done():
                    return
                records = fetching.result()
                await self._put(records)
                if not records and self._until is not None and await self._is_at_end(self._until):
                    await self._commit()
                    return
                fetching = asyncio.ensure_future(self._fetch())
        finally:
            for task in (fetching, stopped):
                task.cancel()
            await asyncio.gather(fetching, stopped, return_exceptions=True)

    async def _fetch(self) -> list[ConsumerRecord]:
        return await self._consumer.fetch_records(FETCH_RECORDS, FETCH_WAIT_MS)

    async def _put(self, records: list[ConsumerRecord]) -> None:
        if records:
            await self._sink.put(records)
            self._records += len(records)
        paused = set(self._sink.paused)
        now = set(self._consumer.paused)
        self._consumer.pause(*(paused - now))
        self._consumer.resume(*(now - paused))
        if time.monotonic() - self._committed_s >= self._commit_every_s:
            await self._commit()

    async def _commit(self) -> None:
        await self._sink.commit()
        self._committed_s = time.monotonic()
        self._report({"records": self._records, **self._dead_letters.describe(), **self._sink.describe()})

    async def _is_at_end(self, ends: Mapping[TopicPartition, int]) -> bool:
        for each, end in ends.items():
            if await self._consumer.position(each) < end:
                return False
        return True

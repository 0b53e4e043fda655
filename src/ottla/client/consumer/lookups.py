"""Consumer queries that read no records: log ends, offsets by time, and a topic's partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.client.brokers import Brokers
from ottla.client.consumer.arrivals import Arrivals
from ottla.client.consumer.fetcher import FetchSettings
from ottla.client.consumer.list_offsets import OffsetAndTimestamp, list_offsets
from ottla.client.consumer.partition_reader import EARLIEST, LATEST
from ottla.client.consumer.types import TopicPartition
from ottla.client.metadata import Metadata


class ConsumerLookups:
    """A mixin of `Consumer`."""

    _settings: FetchSettings
    _brokers: Brokers
    _metadata: Metadata
    _arrivals: Arrivals

    async def offsets_for_time(
        self, times: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Returns for each partition the first record at or after the time in milliseconds, or None."""
        found = await self._list_offsets(times)
        return {at: (result if result.offset >= 0 else None) for at, result in found.items()}

    async def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Returns the first offset of each partition."""
        found = await self._list_offsets(dict.fromkeys(partitions, EARLIEST))
        return {at: result.offset for at, result in found.items()}

    async def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Returns the offset after the last visible record of each partition."""
        found = await self._list_offsets(dict.fromkeys(partitions, LATEST))
        return {at: result.offset for at, result in found.items()}

    async def partitions(self, topic: str) -> list[TopicPartition]:
        """Returns the partitions of a topic."""
        view = await self._metadata.topic(topic, timeout_ms=self._settings.request_timeout_ms)
        return [TopicPartition(topic, index) for index in view.partitions]

    async def _list_offsets(self, wanted: Mapping[tuple[str, int], int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._arrivals.require_open()
        return await list_offsets(
            self._brokers,
            self._metadata,
            {TopicPartition(*at): timestamp for at, timestamp in wanted.items()},
            isolation_level=self._settings.isolation_level,
            timeout_ms=self._settings.request_timeout_ms,
        )

"""The consumer: by record and by Arrow table, without groups.

    async with Consumer("127.0.0.1:9092", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            ...

Data is fetched ahead in the background. `position` moves when records are handed out, so a program that stores
its positions together with its results goes on exactly where it stopped.

With `client_rack`, partitions are read from in-sync followers in that rack, where the brokers allow it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from ottla.client.brokers import Brokers
from ottla.client.errors import ClientClosedError, ClientError, CorruptBatchError
from ottla.client.fetched import READ_COMMITTED, READ_UNCOMMITTED, ConsumerRecord, TopicPartition
from ottla.client.fetcher import Fetcher, FetchSettings
from ottla.client.list_offsets import OffsetAndTimestamp, list_offsets
from ottla.client.metadata import Metadata
from ottla.client.partition_reader import EARLIEST, LATEST, PartitionReader
from ottla.client.subscription import Subscription

if TYPE_CHECKING:
    import pyarrow

OffsetReset = Literal["earliest", "latest", "none"]
IsolationLevel = Literal["read_uncommitted", "read_committed"]
_RESETS: dict[str, int | None] = {"earliest": EARLIEST, "latest": LATEST, "none": None}
_ISOLATION = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}


class Consumer:
    """Start it with `async with`, or with `start` and `close`."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        auto_offset_reset: OffsetReset = "latest",
        isolation_level: IsolationLevel = "read_uncommitted",
        check_crcs: bool = True,
        fetch_max_wait_ms: int = 500,
        fetch_min_bytes: int = 1,
        fetch_max_bytes: int = 50 * 1024 * 1024,
        max_partition_fetch_bytes: int = 1024 * 1024,
        buffer_bytes_per_partition: int = 4 * 1024 * 1024,
        client_id: str = "ottla-consumer",
        client_rack: str = "",
        connect_timeout_ms: int = 10_000,
        request_timeout_ms: int = 30_000,
        metadata_max_age_ms: int = 300_000,
    ) -> None:
        if auto_offset_reset not in _RESETS:
            raise ValueError(f"auto_offset_reset is one of {', '.join(_RESETS)}, not {auto_offset_reset!r}")
        if isolation_level not in _ISOLATION:
            raise ValueError(f"isolation_level is one of {', '.join(_ISOLATION)}, not {isolation_level!r}")
        self._settings = FetchSettings(
            max_wait_ms=fetch_max_wait_ms,
            min_bytes=fetch_min_bytes,
            max_bytes=fetch_max_bytes,
            partition_bytes_max=max_partition_fetch_bytes,
            buffer_bytes_max=buffer_bytes_per_partition,
            isolation_level=_ISOLATION[isolation_level],
            reset_to=_RESETS[auto_offset_reset],
            request_timeout_ms=request_timeout_ms,
            rack=client_rack,
            replica_lease_ms=metadata_max_age_ms,
        )
        self._check_crcs = check_crcs
        self._brokers = Brokers(
            bootstrap_servers,
            client_id=client_id,
            connect_timeout_ms=connect_timeout_ms,
            request_timeout_ms=request_timeout_ms,
        )
        self._metadata = Metadata(self._brokers, allow_auto_create=False, max_age_ms=metadata_max_age_ms)
        self._subscription = Subscription(self._metadata, self._settings.reset_to, max_partition_fetch_bytes)
        self._fetcher: Fetcher | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connects. NoBrokerError if nobody answers."""
        if self._fetcher is not None:
            return
        try:
            await self._metadata.refresh()
        except BaseException:
            await self._brokers.disconnect()  # it may be started again
            raise
        self._fetcher = Fetcher(
            self._settings, self._brokers, self._metadata, self._subscription.readers, self._on_metadata
        )

    async def close(self) -> None:
        self._closed = True
        if self._fetcher is not None:
            await self._fetcher.close()
        await self._brokers.close()

    # What to read.

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Reads exactly these partitions. Those that were assigned before keep their position."""
        self._subscription.assign(TopicPartition(*each) for each in partitions)
        self._wake()

    def subscribe(self, topics: Iterable[str]) -> None:
        """Reads every partition of these topics, also those that are added later (from their beginning)."""
        if isinstance(topics, str):
            raise TypeError("subscribe takes a list of topics")
        self._subscription.subscribe(topics)
        self._wake()

    @property
    def assignment(self) -> list[TopicPartition]:
        return sorted(self._subscription.readers)

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """The next record from this partition is the one at this offset or, if it is not there, the next one."""
        if offset < 0:
            raise ValueError(f"an offset is not negative: {offset}")
        self._reader(partition).seek(offset)
        self._wake()

    async def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """All assigned partitions unless some are named."""
        await self._seek_to(EARLIEST, partitions)

    async def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """The end at the moment of this call."""
        await self._seek_to(LATEST, partitions)

    async def position(self, partition: tuple[str, int]) -> int:
        """The offset of the next record that will be handed out."""
        reader = self._reader(partition)
        while reader.position is None:
            if reader.lookup is None:
                raise reader.failure or ClientError(f"{reader.at} has no position")
            await self._seek_to(reader.lookup, [partition])
        return reader.position

    async def offsets_for_time(
        self, times: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the first record at or after the time in milliseconds; None if there is none."""
        found = await self._list_offsets(times)
        return {at: (result if result.offset >= 0 else None) for at, result in found.items()}

    async def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        found = await self._list_offsets(dict.fromkeys(partitions, EARLIEST))
        return {at: result.offset for at, result in found.items()}

    async def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """One past the last record that a reader may see."""
        found = await self._list_offsets(dict.fromkeys(partitions, LATEST))
        return {at: result.offset for at, result in found.items()}

    async def partitions(self, topic: str) -> list[TopicPartition]:
        view = await self._metadata.topic(topic, timeout_ms=self._settings.request_timeout_ms)
        return [TopicPartition(topic, index) for index in view.partitions]

    # Reading.

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        while True:
            for reader in await self._ready(None):
                for record in reader.each_record(check_crc=self._check_crcs):
                    yield record
                self._wake()

    async def fetch_records(self, max_records: int = 500, timeout_ms: float | None = None) -> list[ConsumerRecord]:
        """Waits until there is a record, then returns what is there, at most `max_records`. Empty after the timeout."""
        records: list[ConsumerRecord] = []
        deadline_s = _deadline_s(timeout_ms)
        while not records and (ready := await self._ready(deadline_s)):
            for reader in ready:
                try:
                    while len(records) < max_records and reader.has_data:
                        records += reader.take_records(max_records - len(records), check_crc=self._check_crcs)
                except CorruptBatchError:
                    if not records:
                        raise
            self._subscription.rotate()
            self._wake()
        return records

    async def fetch_table(self, max_bytes: int = 64 * 1024 * 1024, timeout_ms: float | None = None) -> pyarrow.Table:
        """The same as an Arrow table: topic, partition, offset, timestamp, key, value, headers.

        `max_bytes` counts batches as they came (compressed, if they are); at least one batch is returned.
        """
        from ottla.client.read_tables import take_record_batch, to_table

        parts: list[pyarrow.RecordBatch] = []
        left_bytes = max_bytes
        deadline_s = _deadline_s(timeout_ms)
        while not parts and (ready := await self._ready(deadline_s)):
            for reader in ready:
                try:
                    part, size_bytes = take_record_batch(reader, left_bytes, check_crc=self._check_crcs)
                except CorruptBatchError:
                    if not parts:
                        raise
                    continue
                if part is not None:
                    parts.append(part)
                left_bytes -= size_bytes
                if left_bytes <= 0:
                    break
            self._subscription.rotate()
            self._wake()
        return to_table(parts)

    async def _ready(self, deadline_s: float | None) -> list[PartitionReader]:
        """The partitions that have data, as soon as one has. Empty when the time is over."""
        loop = asyncio.get_running_loop()
        while True:
            fetcher = self._require_fetcher()
            failure = self._subscription.take_failure()
            if failure is not None:
                fetcher.wake()  # what failed is tried again, and nobody else says so
                raise failure
            ready = [reader for reader in self._subscription.readers.values() if reader.has_data]
            if ready:
                return ready
            left_s = None if deadline_s is None else deadline_s - loop.time()
            if left_s is not None and left_s <= 0:
                return []
            await fetcher.wait_arrived(left_s)

    # The rest.

    async def _seek_to(self, end: int, partitions: Iterable[tuple[str, int]]) -> None:
        chosen = [TopicPartition(*each) for each in partitions] or self.assignment
        found = await self._list_offsets(dict.fromkeys(chosen, end))
        for at, result in found.items():
            self._reader(at).seek(result.offset)
        self._wake()

    async def _list_offsets(self, wanted: Mapping[tuple[str, int], int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._require_fetcher()
        return await list_offsets(
            self._brokers,
            self._metadata,
            {TopicPartition(*at): timestamp for at, timestamp in wanted.items()},
            isolation_level=self._settings.isolation_level,
            timeout_ms=self._settings.request_timeout_ms,
        )

    def _reader(self, partition: tuple[str, int]) -> PartitionReader:
        reader = self._subscription.readers.get(TopicPartition(*partition))
        if reader is None:
            raise ClientError(f"{TopicPartition(*partition)} is not assigned to this consumer")
        return reader

    def _on_metadata(self) -> None:
        self._subscription.discover()
        assert self._fetcher is not None
        self._subscription.note_unknown_topics(asyncio.get_running_loop().time(), self._fetcher.notify)

    def _wake(self) -> None:
        if self._fetcher is not None:
            self._fetcher.wake()

    def _require_fetcher(self) -> Fetcher:
        if self._closed:
            raise ClientClosedError("the consumer is closed")
        if self._fetcher is None:
            raise ClientClosedError("the consumer was not started: use `async with Consumer(...)` or `await start()`")
        return self._fetcher


def _deadline_s(timeout_ms: float | None) -> float | None:
    return None if timeout_ms is None else asyncio.get_running_loop().time() + timeout_ms / 1000

"""Reads a partition as a log to recover from, through the Kafka protocol: from Ottla or from Apache Kafka.

Records are decoded a column at a time, so this is the fastest way to read a long log. It needs pyarrow, which the extra
ottla[recovery] installs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from ottla.client import Admin, Consumer
from ottla.recovery.logs import Columns

READ_TIMEOUT_MS = 30_000
_FETCH_BYTES = 4 << 20
_BUFFER_BYTES = 16 << 20


class KafkaEntry(NamedTuple):
    """One record of the partition: its offset, value and timestamp."""

    offset: int
    data: bytes
    timestamp_ms: int


class KafkaTail(NamedTuple):
    """The first offset of the partition and the end of its committed records."""

    start_offset: int
    end_offset: int


class KafkaLog:
    """One partition, read-only except for `trim`.

    A leader writes through `ottla.wal` instead, which fences the previous writer.

        log = KafkaLog("127.0.0.1:9092", "orders-wal")
        async for entries in log.read_chunks(0):
            for entry in entries:
                print(entry.offset, entry.data)
    """

    def __init__(self, bootstrap_servers: str, topic: str, partition: int = 0) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._at = (topic, partition)

    def _consumer(self) -> Consumer:
        consumer = Consumer(
            self._bootstrap_servers,
            auto_offset_reset="none",
            isolation_level="read_committed",
            max_partition_fetch_bytes=_FETCH_BYTES,
            buffer_bytes_per_partition=_BUFFER_BYTES,
        )
        consumer.assign([self._at])
        return consumer

    async def tail(self) -> KafkaTail:
        """Returns the current start and end of the committed log."""
        async with self._consumer() as consumer:
            start = await consumer.beginning_offsets([self._at])
            end = await consumer.end_offsets([self._at])
        return KafkaTail(*start.values(), *end.values())

    async def read_columns(self, first: int, until: int | None = None) -> AsyncIterator[Columns]:
        """Reads committed records from `first` up to `until` (exclusive), or up to the current end, as columns."""
        import pyarrow as pa

        if until is None:
            until = (await self.tail()).end_offset
        if first >= until:
            return
        consumer = self._consumer()
        consumer.seek(self._at, first)
        async with consumer:
            while found := await consumer.fetch_range(
                self._at, until, max_bytes=_FETCH_BYTES, timeout_ms=READ_TIMEOUT_MS
            ):
                rows, _ = found
                values = rows.column("value")
                if values.null_count:  # null is not an entry; the empty value makes the decoder reject it by offset
                    values = values.fill_null(b"")
                times = rows.column("timestamp").cast(pa.int64())
                yield Columns(rows.column("offset").to_pylist(), times.to_pylist(), values.to_pylist())

    async def read_chunks(self, first: int, until: int | None = None) -> AsyncIterator[Sequence[KafkaEntry]]:
        """Reads like `read_columns`, but yields lists of entries."""
        async for columns in self.read_columns(first, until):
            yield [KafkaEntry(*each) for each in zip(columns.offsets, columns.data, columns.timestamps_ms, strict=True)]

    async def follow_chunks(self, first: int) -> AsyncIterator[Sequence[KafkaEntry]]:
        """Yields lists of entries from `first` on and waits for new records. Never ends on its own."""
        consumer = self._consumer()
        consumer.seek(self._at, first)
        async with consumer:
            while True:
                records = await consumer.fetch_records()
                yield [KafkaEntry(each.offset, each.value or b"", each.timestamp_ms) for each in records]

    async def follow(self, first: int) -> AsyncIterator[KafkaEntry]:
        """Yields entries one at a time from `first` on and waits for new records. Never ends on its own."""
        async for entries in self.follow_chunks(first):
            for entry in entries:
                yield entry

    async def trim(self, before: int) -> None:
        """Deletes the records before this offset."""
        async with Admin(self._bootstrap_servers) as admin:
            await admin.delete_records({self._at: before})

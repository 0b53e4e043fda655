"""A partition as a log to recover from, through the Kafka protocol: Ottla, or Apache Kafka.

Whole columns are decoded at a time, so this is the fastest way to read a long log. It needs pyarrow: ottla[recovery].
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
    offset: int
    data: bytes
    timestamp_ms: int


class KafkaTail(NamedTuple):
    start_offset: int
    end_offset: int


class KafkaLog:
    """Read-only but for `trim`. A leader writes through `ottla.wal`, which fences the one before it."""

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
        async with self._consumer() as consumer:
            start = await consumer.beginning_offsets([self._at])
            end = await consumer.end_offsets([self._at])
        return KafkaTail(*start.values(), *end.values())

    async def read_columns(self, first: int, until: int | None = None) -> AsyncIterator[Columns]:
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
                if values.null_count:  # no entry: it is refused with its offset
                    values = values.fill_null(b"")
                times = rows.column("timestamp").cast(pa.int64())
                yield Columns(rows.column("offset").to_pylist(), times.to_pylist(), values.to_pylist())

    async def read_chunks(self, first: int, until: int | None = None) -> AsyncIterator[Sequence[KafkaEntry]]:
        async for columns in self.read_columns(first, until):
            yield [KafkaEntry(*each) for each in zip(columns.offsets, columns.data, columns.timestamps_ms, strict=True)]

    async def follow_chunks(self, first: int) -> AsyncIterator[Sequence[KafkaEntry]]:
        consumer = self._consumer()
        consumer.seek(self._at, first)
        async with consumer:
            while True:
                records = await consumer.fetch_records()
                yield [KafkaEntry(each.offset, each.value or b"", each.timestamp_ms) for each in records]

    async def follow(self, first: int) -> AsyncIterator[KafkaEntry]:
        async for entries in self.follow_chunks(first):
            for entry in entries:
                yield entry

    async def trim(self, before: int) -> None:
        async with Admin(self._bootstrap_servers) as admin:
            await admin.delete_records({self._at: before})

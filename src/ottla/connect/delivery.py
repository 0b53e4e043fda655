"""Writes each batch of a source to the log in one transaction, together with its position."""

from __future__ import annotations

import asyncio
import contextlib

import pyarrow as pa

from ottla.client import Admin, Producer
from ottla.client.errors import RecordTooLargeError, TopicExistsError
from ottla.connect.contract import Rows, Source, SourceBatch
from ottla.connect.failures import NeedsHelpError
from ottla.connect.positions import POSITION_KEY, encode_position, position_topic
from ottla.protocol.records.arrow import HEADERS


class Delivery:
    """Writes batches, and creates the topics that do not exist."""

    def __init__(self, connector: str, bootstrap: str, source: Source, producer: Producer) -> None:
        self._bootstrap = bootstrap
        self._source = source
        self._producer = producer
        self._position_topic = position_topic(connector)
        self._ready: set[str] = set()

    async def deliver(self, batch: SourceBatch) -> None:
        """Writes and commits a batch. Raises TransactionAbortedError if the transaction aborted; the caller may
        retry."""
        for topic in batch.rows:
            if topic not in self._ready:
                await self._prepare(topic)
        try:
            async with self._producer.transaction() as transaction:
                await asyncio.gather(
                    *(transaction.send_table(topic, to_table(rows)) for topic, rows in batch.rows.items() if len(rows))
                )
                transaction.send_nowait(self._position_topic, encode_position(batch.position), POSITION_KEY)
        except RecordTooLargeError as failure:
            raise NeedsHelpError(f"{failure}. It remains in the source; nothing was skipped") from failure

    async def _prepare(self, topic: str) -> None:
        settings = self._source.topic_settings(topic)
        async with Admin(self._bootstrap) as admin:
            with contextlib.suppress(TopicExistsError):
                await admin.create_topic(topic, partitions=settings.partitions, configs=settings.configs)
        count = len(await self._producer.partitions(topic))
        if settings.only_partition and count > 1:
            raise NeedsHelpError(
                f"{topic} has {count} partitions, but this connector needs exactly one, to keep the order of "
                f"its records. Choose another --prefix, or run `ottla topics delete {topic}` so that it is "
                "created with one"
            )
        self._ready.add(topic)


def to_table(rows: Rows) -> pa.Table:
    """Converts rows to the Arrow table that the producer accepts."""
    columns = {"key": pa.array(rows.keys, pa.large_binary()), "value": pa.array(rows.values, pa.large_binary())}
    if rows.headers:
        listed = [
            [{"key": name, "value": value} for name, value in rows.headers.get(number, ())]
            for number in range(len(rows))
        ]
        columns["headers"] = pa.array(listed, HEADERS)
    return pa.table(columns)

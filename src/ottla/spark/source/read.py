"""One task of a read: reads a range of one partition as Arrow batches. Runs on a worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from ottla.client import Consumer, TopicPartition
from ottla.client.errors import ClientError, OffsetOutOfRangeError
from ottla.spark.loop_thread import LoopThread
from ottla.spark.source.offsets_lookup import new_consumer
from ottla.spark.source.options import SourceOptions
from ottla.spark.source.schema import RowBatches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

BATCH_BYTES = 4 * 1024 * 1024
log = logging.getLogger("ottla.spark")

RowFilter = Callable[["pa.RecordBatch"], "pa.RecordBatch"]


class DataLossError(ClientError):
    """Records were deleted before the query read them. With `failOnDataLoss=false` the query continues without them."""


def lost(sentence: str, *, fail: bool) -> None:
    """Raises DataLossError, or logs a warning and lets the query continue."""
    if fail:
        raise DataLossError(f"{sentence} Set the option failOnDataLoss to false to continue without them.")
    log.warning("%s The query continues without them, because failOnDataLoss is false.", sentence)


@dataclass
class ReadRange(InputPartition):
    """The range that one task reads; `end` is exclusive."""

    topic: str
    partition: int
    start: int
    end: int


def read_range(
    options: SourceOptions, schema: StructType, part: ReadRange, keep: RowFilter | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields every visible record of the range, in order.

    Raises DataLossError if records are deleted meanwhile, unless the job allows that.
    """
    at = TopicPartition(part.topic, part.partition)
    batches = RowBatches(schema, at)
    with LoopThread() as thread:
        consumer = new_consumer(options)
        thread.run(consumer.start())
        try:
            consumer_at(thread, consumer, at, part.start)
            while True:
                try:
                    found = thread.run(
                        consumer.fetch_range(at, part.end, max_bytes=BATCH_BYTES, timeout_ms=options.poll_timeout_ms)
                    )
                except OffsetOutOfRangeError:
                    if not skip_lost(thread, consumer, at, part, fail=options.fail_on_data_loss):
                        return
                    continue
                if found is None:
                    return
                rows, by_broker = found
                if keep is not None:
                    rows = keep(rows)
                if rows.num_rows:
                    yield batches.convert(rows, by_broker)
        finally:
            thread.run(consumer.close())


def consumer_at(thread: LoopThread, consumer: Consumer, at: TopicPartition, offset: int) -> None:
    """Assigns the partition and seeks to an offset."""

    async def move() -> None:  # on the loop, because a seek wakes the fetcher
        consumer.assign([at])
        consumer.seek(at, offset)

    thread.run(move())


def skip_lost(thread: LoopThread, consumer: Consumer, at: TopicPartition, part: ReadRange, *, fail: bool) -> bool:
    """Seeks to the first remaining record. Returns False if none of the range remains."""
    position = thread.run(consumer.position(at))
    first = thread.run(consumer.beginning_offsets([at]))[at]
    if first <= position:  # the end moved back: the topic was recreated
        lost(f"Offset {position} of {at} no longer exists: its log ends before it.", fail=fail)
        return False
    lost(f"Records of {at} from offset {position} to {min(first, part.end)} were deleted.", fail=fail)
    if first >= part.end:
        return False
    consumer_at(thread, consumer, at, first)
    return True

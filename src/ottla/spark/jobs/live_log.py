"""The live log for jobs: where it begins and ends, the offsets of a time, and its records as a DataFrame."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from ottla.archive.ranges import OffsetRange
from ottla.client import Consumer
from ottla.client.consumer.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.client.consumer.settings import IsolationLevel

T = TypeVar("T")

RECORD_SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""The schema of every DataFrame of records, as in Spark's Kafka connector."""
RECORD_COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]


class LiveLog(Protocol):
    """The broker operations that jobs use."""

    def partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Returns the partitions of these topics, sorted."""
        ...

    def extents(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        """Returns the ranges from the first available offset to the end of the committed records."""
        ...

    def offsets_at(self, partitions: Iterable[TopicPartition], time_ms: int) -> dict[TopicPartition, int | None]:
        """Returns the first offset at or after the time; None if there is none."""
        ...

    def read(self, spark: SparkSession, ranges: Mapping[TopicPartition, OffsetRange]) -> DataFrame:
        """Returns the records in these ranges as a DataFrame with the columns RECORD_COLUMNS."""
        ...


@dataclass(frozen=True)
class BrokerLog:
    """A cluster of Ottla or Apache Kafka. `options` are passed to `spark.read.format("ottla")`."""

    bootstrap: str
    isolation_level: IsolationLevel = "read_committed"
    source: str = "ottla"
    options: Mapping[str, str] = field(default_factory=dict)

    def partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Asks the cluster for the partitions of these topics. Returns them sorted."""

        async def ask(consumer: Consumer) -> list[TopicPartition]:
            return [at for topic in topics for at in await consumer.partitions(topic)]

        return sorted(self._ask(ask))

    def extents(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        wanted = list(partitions)

        async def ask(consumer: Consumer) -> dict[TopicPartition, OffsetRange]:
            # The end first, so that retention running in between cannot produce a negative range.
            ends = await consumer.end_offsets(wanted)
            starts = await consumer.beginning_offsets(wanted)
            return {at: OffsetRange(starts[at], max(starts[at], ends[at])) for at in wanted}

        return self._ask(ask)

    def offsets_at(self, partitions: Iterable[TopicPartition], time_ms: int) -> dict[TopicPartition, int | None]:
        async def ask(consumer: Consumer) -> dict[TopicPartition, int | None]:
            found = await consumer.offsets_for_time(dict.fromkeys(partitions, time_ms))
            return {at: None if each is None else each.offset for at, each in found.items()}

        return self._ask(ask)

    def read(self, spark: SparkSession, ranges: Mapping[TopicPartition, OffsetRange]) -> DataFrame:
        """Reads the ranges with the data source; missing offsets fail the job. Empty ranges are left out."""
        wanted = {at: each for at, each in ranges.items() if len(each)}
        if not wanted:
            return spark.createDataFrame([], RECORD_SCHEMA)
        assigned: dict[str, list[int]] = {}
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for (topic, partition), each in wanted.items():
            assigned.setdefault(topic, []).append(partition)
            starts.setdefault(topic, {})[str(partition)] = each.start
            ends.setdefault(topic, {})[str(partition)] = each.end
        reader = spark.read.format(self.source).option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader.option("assign", json.dumps(assigned)).option("includeHeaders", "true")
        reader = reader.option("startingOffsets", json.dumps(starts)).option("endingOffsets", json.dumps(ends))
        reader = reader.option("failOnDataLoss", "true").option("kafka.isolation.level", self.isolation_level)
        return reader.options(**self.options).load().select(*RECORD_COLUMNS)

    def _ask(self, question: Callable[[Consumer], Awaitable[T]]) -> T:
        async def work() -> T:
            async with Consumer(
                self.bootstrap, isolation_level=self.isolation_level, client_id="ottla-pipeline"
            ) as consumer:
                return await question(consumer)

        return asyncio.run(work())

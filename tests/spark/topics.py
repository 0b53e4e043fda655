"""Writes and reads topics without Spark, for comparison with Spark's results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from ottla.client import Admin, Consumer, ConsumerRecord, Producer, TopicPartition

T = TypeVar("T")
NewTopic = Callable[..., str]


def columns(text: str) -> StructType:
    """Parses `offset long, value binary` without a JVM."""
    types = {"long": LongType(), "int": IntegerType(), "binary": BinaryType(), "string": StringType()}
    pairs = [each.split() for each in text.split(",")]
    return StructType([StructField(name, types[kind]) for name, kind in pairs])


def produce(servers: str, topic: str, values: Iterable[bytes | None], **columns: Any) -> None:
    """Produces one record after the other. `key`, `headers`, `timestamp_ms` and `partition` are the same for all, or
    functions of the row's number."""

    async def send() -> None:
        async with Producer(servers) as producer:
            for number, value in enumerate(values):
                row = {name: each(number) if callable(each) else each for name, each in columns.items()}
                await producer.enqueue(topic, value, **row)
            await producer.flush()

    asyncio.run(send())


def produce_transaction(servers: str, topic: str, values: Iterable[bytes], *, commit: bool, partition: int = 0) -> None:
    async def send() -> None:
        async with Producer(servers, transactional_id=f"writer-of-{topic}") as producer:
            transaction = producer.transaction()
            async with transaction:
                for value in values:
                    await transaction.enqueue(topic, value, partition=partition)
                await producer.flush()
                await (transaction.commit() if commit else transaction.abort())

    asyncio.run(send())


def read_committed(servers: str, topic: str) -> list[ConsumerRecord]:
    """Returns all committed records, partition by partition. Waits for transactions that are open now."""

    async def read() -> list[ConsumerRecord]:
        async with Consumer(servers) as ends:
            partitions = await ends.partitions(topic)
            end = await ends.end_offsets(partitions)
        records: list[ConsumerRecord] = []
        async with Consumer(servers, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
            for at in partitions:
                consumer.assign([at])
                consumer.seek(at, 0)
                while (found := await consumer.fetch_range(at, end[at], timeout_ms=120_000)) is not None:
                    records += [_record(at, row) for row in found[0].to_pylist()]
        return records

    return asyncio.run(read())


def _record(at: TopicPartition, row: dict[str, Any]) -> ConsumerRecord:
    headers = tuple((each["key"], each["value"]) for each in row["headers"])
    timestamp_ms = round(row["timestamp"].timestamp() * 1000)
    return ConsumerRecord(*at, row["offset"], timestamp_ms, row["key"], row["value"], headers)


def values_of(servers: str, topic: str) -> list[bytes]:
    return [record.value for record in read_committed(servers, topic) if record.value is not None]


SLOW_START = "Python worker failed to connect back"
"""Spark waits ten seconds for a source's process, however busy the machine is. A failed start is retried."""
STARTS_MAX = 20
POLL_S = 0.1


def finish(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Returns the query when it has ended."""
    for _ in range(STARTS_MAX):
        query = start()
        try:
            query.awaitTermination()
            return query
        except StreamingQueryException as failure:
            if SLOW_START not in str(failure):
                raise
    raise TimeoutError("Spark did not manage to start a Python worker")


def finish_all(starts: Iterable[Callable[[], StreamingQuery]]) -> None:
    """Runs the queries concurrently. Raises the exception of one that failed."""
    running = [(begin, begin(), 1) for begin in starts]
    while running:
        still = []
        for begin, query, times in running:
            if query.isActive:
                still.append((begin, query, times))
            elif (failure := query.exception()) is not None:
                if SLOW_START not in str(failure) or times == STARTS_MAX:
                    raise failure
                still.append((begin, begin(), times + 1))
        running = still
        time.sleep(POLL_S)


def with_admin(servers: str, work: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with Admin(servers) as admin:
            return await work(admin)

    return asyncio.run(run())

"""Requests sent directly to the brokers: list topics, read a few values, create a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ottla.client import Admin, Consumer, TopicPartition
from ottla.client.errors import TopicExistsError

SAMPLES_MAX = 200
SAMPLE_TIMEOUT_MS = 30_000
CLIENT_ID = "ottla-sql"


def topic_sizes(servers: str) -> dict[str, int]:
    """Returns the number of partitions of each topic."""

    async def ask() -> dict[str, int]:
        async with Admin(servers, client_id=CLIENT_ID) as admin:
            return {each.name: each.partition_count for each in await admin.list_topics()}

    return asyncio.run(ask())


def create_topic(servers: str, name: str, *, partitions: int = -1, configs: Mapping[str, str] | None = None) -> bool:
    """Creates a topic. Returns False if it exists."""

    async def create() -> bool:
        async with Admin(servers, client_id=CLIENT_ID) as admin:
            try:
                await admin.create_topic(name, partitions=partitions, configs=configs)
            except TopicExistsError:
                return False
            return True

    return asyncio.run(create())


def sample_values(servers: str, topic: str, *, samples_max: int = SAMPLES_MAX) -> list[bytes | None]:
    """Returns some of the last values of all partitions, about `samples_max` in total."""

    async def read() -> list[bytes | None]:
        async with Consumer(servers, client_id=CLIENT_ID, isolation_level="read_committed") as consumer:
            partitions = await consumer.partitions(topic)
            begin, end = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
            each_max = max(1, samples_max // max(1, len(partitions)))
            found: list[bytes | None] = []
            for at in partitions:
                found += await _last_values(consumer, at, begin[at], end[at], each_max)
            return found

    return asyncio.run(read())


async def _last_values(consumer: Consumer, at: TopicPartition, begin: int, end: int, wanted: int) -> list[bytes | None]:
    """Returns the last values of a partition.

    Transaction markers and compacted offsets have no record, so if there is no value, it looks further back.
    """
    span = wanted
    while True:
        start = max(begin, end - span)
        consumer.assign([at])
        consumer.seek(at, start)
        values: list[bytes | None] = []
        while (found := await consumer.fetch_range(at, end, timeout_ms=SAMPLE_TIMEOUT_MS)) is not None:
            values += found[0].column("value").to_pylist()
        if values or start == begin:
            return values[-wanted:]
        span *= 8

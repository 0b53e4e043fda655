"""Lists dead letters and sends them back to the topics that they came from.

The group `ottla-dlq-TOPIC` commits its offsets in the same transaction as the records that are sent back, so none is
sent twice and none is skipped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from ottla.client import Consumer, Producer
from ottla.client.consumer.types import ConsumerRecord, TopicPartition
from ottla.connect.dead_letters import Origin, origin_of, own_headers

BATCH = 500


def group_of(topic: str) -> str:
    """Returns the consumer group, and transactional id, that redrives a dead-letter topic."""
    return f"ottla-dlq-{topic}"


async def list_dead_letters(
    bootstrap: str, topic: str, *, include_redriven: bool = False
) -> AsyncIterator[tuple[ConsumerRecord, Origin]]:
    """Yields the dead letters that have not been sent back yet, each origin once."""
    seen: set[tuple[TopicPartition, int, str]] = set()
    async with Consumer(
        bootstrap, isolation_level="read_committed", group_id=group_of(topic), auto_commit=False
    ) as consumer:
        partitions = await consumer.partitions(topic)
        committed = await consumer.committed(partitions)
        begins, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        for each in partitions:
            known = committed.get(each)
            begin = begins[each] if known is None or include_redriven else max(known.offset, begins[each])
            consumer.seek(each, begin)
        left = {each for each in partitions if await consumer.position(each) < ends[each]}
        while left:
            for record in await consumer.fetch_records(BATCH, timeout_ms=500):
                origin = origin_of(record)
                if origin is None or record.offset >= ends[record.at]:
                    continue
                if (origin.at, origin.offset, origin.connector) not in seen:
                    seen.add((origin.at, origin.offset, origin.connector))
                    yield record, origin
            left = {each for each in left if await consumer.position(each) < ends[each]}


async def _check_topic(bootstrap: str, topic: str) -> None:
    """Raises the broker's error for a topic that does not exist, before a group or a transactional id is created."""
    async with Consumer(bootstrap) as consumer:
        await consumer.partitions(topic)


async def redrive(bootstrap: str, topic: str, *, limit: int | None = None) -> int:
    """Sends dead letters back to their topics, without the headers that were added. Returns the number of records
    sent."""
    await _check_topic(bootstrap, topic)
    sent = 0
    consumer = Consumer(
        bootstrap,
        group_id=group_of(topic),
        auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    producer = Producer(bootstrap, transactional_id=group_of(topic))
    seen: set[tuple[TopicPartition, int, str]] = set()
    async with consumer, producer:
        consumer.subscribe([topic])
        ends = await consumer.end_offsets(await consumer.partitions(topic))
        while limit is None or sent < limit:
            wanted = BATCH if limit is None else min(BATCH, limit - sent)
            records = await consumer.fetch_records(wanted, timeout_ms=2_000)
            if not records:
                return sent
            async with producer.transaction() as transaction:
                for record in records:
                    origin = origin_of(record)
                    if origin is None or (origin.at, origin.offset, origin.connector) in seen:
                        continue
                    seen.add((origin.at, origin.offset, origin.connector))
                    await transaction.enqueue(origin.at.topic, record.value, record.key, own_headers(record))
                    sent += 1
                await transaction.send_offsets(consumer)
            if all([await consumer.position(each) >= end for each, end in ends.items() if each in consumer.assignment]):
                return sent
    return sent

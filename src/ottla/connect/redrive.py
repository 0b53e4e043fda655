"""Dead letters: what there is, and back to where they came from.

The group `ottla-dlq-TOPIC` has how far they were sent back, in the same transaction as the records: none is sent back
twice, and none is forgotten.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from ottla.client import Consumer, Producer
from ottla.client.fetched import ConsumerRecord, TopicPartition
from ottla.connect.dead_letters import Origin, origin_of, own_headers

BATCH = 500


def group_of(topic: str) -> str:
    return f"ottla-dlq-{topic}"


async def list_dead_letters(
    bootstrap: str, topic: str, *, include_redriven: bool = False
) -> AsyncIterator[tuple[ConsumerRecord, Origin]]:
    """Those that were not sent back yet, each origin once."""
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
    """Raises what the broker says of a topic that does not exist, before a group or a transactional id is made."""
    async with Consumer(bootstrap) as consumer:
        await consumer.partitions(topic)


async def redrive(bootstrap: str, topic: str, *, limit: int | None = None) -> int:
    """Sends dead letters back to the topics that they came from, without the headers that were added; how many."""
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

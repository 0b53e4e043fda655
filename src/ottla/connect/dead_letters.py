"""The dead-letter topic: unchanged copies of the records that a sink rejected, with the reason in the headers.

The headers have Kafka Connect's names. A record that is rejected again after a crash appears twice with the same
origin, so readers deduplicate by origin.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from ottla.client import Producer
from ottla.client.consumer.types import ConsumerRecord, TopicPartition
from ottla.connect.failures import NeedsHelpError
from ottla.connect.positions import ensure_topic

TOPIC_HEADER = "__connect.errors.topic"
PARTITION_HEADER = "__connect.errors.partition"
OFFSET_HEADER = "__connect.errors.offset"
CONNECTOR_HEADER = "__connect.errors.connector.name"
REASON_HEADER = "__connect.errors.exception.message"
TIME_HEADER = "__connect.errors.timestamp"
_PREFIX = "__connect.errors."


class Origin(NamedTuple):
    """Where a dead letter comes from, and why it was rejected."""

    at: TopicPartition
    offset: int
    connector: str
    reason: str


class DeadLetterTopic:
    """Writes rejected records to a topic. Without a topic, the first rejected record stops the connector."""

    def __init__(self, bootstrap: str, connector: str, topic: str | None) -> None:
        self._bootstrap = bootstrap
        self._connector = connector
        self._topic = topic
        self._producer: Producer | None = None
        self._count = 0

    async def put(self, record: ConsumerRecord, reason: str) -> None:
        """Writes one record. It is acknowledged when the call returns."""
        if self._topic is None:
            raise NeedsHelpError(
                f"{record.at} offset {record.offset}: {reason}. Nothing was skipped; with --dead-letters "
                "TOPIC, the connector sends such records and their reasons to a topic and continues"
            )
        if self._producer is None:
            await ensure_topic(self._bootstrap, self._topic, {"retention.ms": "-1"})
            self._producer = Producer(self._bootstrap, client_id=f"ottla-connect-{self._connector}-dead-letters")
            await self._producer.start()
        added = {
            TOPIC_HEADER: record.topic,
            PARTITION_HEADER: str(record.partition),
            OFFSET_HEADER: str(record.offset),
            CONNECTOR_HEADER: self._connector,
            REASON_HEADER: reason,
            TIME_HEADER: str(time.time_ns() // 1_000_000),
        }
        headers = [*own_headers(record), *((name, value.encode()) for name, value in added.items())]
        await self._producer.send(self._topic, record.value, record.key, headers, record.timestamp_ms)
        self._count += 1

    def describe(self) -> dict[str, Any]:
        """Returns the number of rejected records for the status report; nothing if there were none."""
        return {"dead_letters": self._count} if self._count else {}

    async def close(self) -> None:
        """Closes the producer, if any record was rejected so far."""
        if self._producer is not None:
            await self._producer.close()


def own_headers(record: ConsumerRecord) -> list[tuple[str, bytes | None]]:
    """Returns the headers that the record had before it was rejected."""
    return [(name, value) for name, value in record.headers if not name.startswith(_PREFIX)]


def origin_of(record: ConsumerRecord) -> Origin | None:
    """Returns the origin of a dead letter, or None if the record is not a dead letter."""
    found = {name: (value or b"").decode(errors="replace") for name, value in record.headers}
    try:
        at = TopicPartition(found[TOPIC_HEADER], int(found[PARTITION_HEADER]))
        return Origin(at, int(found[OFFSET_HEADER]), found.get(CONNECTOR_HEADER, ""), found.get(REASON_HEADER, ""))
    except (KeyError, ValueError):
        return None

"""Looks up offsets by time, and the ends of logs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

from ottla.client.brokers import Brokers, new_backoff
from ottla.client.consumer.types import TopicPartition
from ottla.client.errors import ClientError, RequestTimedOutError, refused
from ottla.client.metadata import PASSING_FAILURES, Metadata
from ottla.net.apis import LIST_OFFSETS, call
from ottla.protocol.model.errors import ErrorCode

LOOKUPS = "lookups"
"""The purpose of these connections, so that a lookup never waits behind a long poll."""


class OffsetAndTimestamp(NamedTuple):
    """An offset and the timestamp of its record."""

    offset: int
    timestamp_ms: int


Found = dict[TopicPartition, OffsetAndTimestamp]


async def list_offsets(
    brokers: Brokers,
    metadata: Metadata,
    wanted: Mapping[TopicPartition, int],
    *,
    isolation_level: int,
    timeout_ms: float,
) -> Found:
    """Returns the first offset at or after each timestamp, or -1. The timestamps -1 and -2 ask for the ends."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_ms / 1000
    backoff = new_backoff(min_ms=20)
    found: Found = {}
    failure: ClientError = RequestTimedOutError("looking up offsets timed out")
    while True:
        missing = {at: timestamp for at, timestamp in wanted.items() if at not in found}
        if not missing:
            return found
        try:
            left_ms = max(1.0, (deadline_s - loop.time()) * 1000)
            for at in missing:
                await metadata.topic(at.topic, timeout_ms=left_ms)
            for leader, part in _by_leader(metadata, missing).items():
                found |= await _ask(brokers, metadata, leader, part, isolation_level)
        except _RetryError as cause:
            failure = cause.reason
        except PASSING_FAILURES as cause:
            metadata.mark_stale()
            failure = cause
        else:
            continue
        if loop.time() >= deadline_s:
            raise failure
        await asyncio.sleep(backoff.next_s())


class _RetryError(Exception):
    def __init__(self, reason: ClientError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _by_leader(metadata: Metadata, wanted: Mapping[TopicPartition, int]) -> dict[int, dict[TopicPartition, int]]:
    grouped: dict[int, dict[TopicPartition, int]] = {}
    for at, timestamp in wanted.items():
        view = metadata.cached(at.topic)
        if view is not None and at.partition not in view.partitions:
            count = len(view.partitions)
            message = f"the topic has partitions 0 to {count - 1}"
            raise refused(ErrorCode.unknown_topic_or_partition, f"{at.topic}-{at.partition}", message)
        leader = metadata.leader(at.topic, at.partition)
        if leader is None:
            metadata.mark_stale()
            raise _RetryError(refused(ErrorCode.leader_not_available, str(at)))
        grouped.setdefault(leader, {})[at] = timestamp
    return grouped


async def _ask(
    brokers: Brokers, metadata: Metadata, leader: int, wanted: Mapping[TopicPartition, int], isolation_level: int
) -> Found:
    topics: dict[str, list[dict[str, int]]] = {}
    for at, timestamp in wanted.items():
        entry = {"partition_index": at.partition, "current_leader_epoch": -1, "timestamp": timestamp}
        topics.setdefault(at.topic, []).append(entry)
    body = {
        "replica_id": -1,
        "isolation_level": isolation_level,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        "timeout": timedelta(seconds=10),
    }
    connection = await brokers.connection(leader, LOOKUPS)
    reply = await call(connection, LIST_OFFSETS, body, what="looking up offsets")
    found: Found = {}
    for topic in reply.topics:
        for each in topic.partitions:
            at = TopicPartition(topic.name, int(each.partition_index))
            if not each.error_code:
                found[at] = OffsetAndTimestamp(int(each.offset), int(each.timestamp))
            elif each.error_code.retriable:
                metadata.mark_stale()
                raise _RetryError(refused(each.error_code, str(at)))
            else:
                raise refused(each.error_code, str(at))
    return found

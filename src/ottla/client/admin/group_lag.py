"""Measures the lag of groups from outside: offsets, log ends, and the timestamp of the first unread record.

`ottla.protocol.model.lag` defines lag. The timestamp comes from the header of the batch with the first unread record.
This takes one small fetch for each partition with lag; all partitions of a leader share one request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.client.admin.group_descriptions import GroupDescription, GroupOffset
from ottla.client.brokers import Brokers
from ottla.client.consumer.list_offsets import LOOKUPS, list_offsets
from ottla.client.consumer.partition_reader import EARLIEST, LATEST
from ottla.client.consumer.types import READ_UNCOMMITTED, TopicPartition
from ottla.client.errors import ClientError
from ottla.client.metadata import PASSING_FAILURES, Metadata
from ottla.net.apis import FETCH
from ottla.protocol.model.lag import batch_timestamp_ms, lag_of, lag_seconds
from ottla.protocol.records.batch import HEADER_BYTES, read_header
from ottla.protocol.wire.fetch import TOPIC_IDS_FROM, FetchPartition, FetchRequest
from ottla.protocol.wire.fetch_client import FetchedPartition, encode_fetch_request, parse_fetch_response
from ottla.protocol.wire.primitives import MalformedRequest
from ottla.protocol.wire.produce import TopicKey

TRIES = 3
RETRY_PAUSE_S = 0.1
FETCH_BYTES = 4096
FETCH_BYTES_GROWTH = 8
REPLY_BYTES_MAX = 8 * 1024 * 1024

Unread = tuple[TopicPartition, int]
"""A partition and the offset of its first unread record."""


class LogEnds(NamedTuple):
    """The first offset and the end of a log, or the problem that hides them."""

    first: int | None
    end: int | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of a group in one partition."""

    topic: str
    partition: int
    committed: int | None
    first_offset: int | None
    end_offset: int | None
    """The last offset that a consumer can reach: the last stable offset."""
    lag: int | None
    """None if nothing was committed or the log is not available."""
    lag_seconds: float | None
    missed: int | None
    """Offsets that were deleted before the group read them."""
    member_id: str | None
    client_id: str | None
    host: str | None
    problem: str | None

    @property
    def at(self) -> TopicPartition:
        """The topic and the partition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a group."""

    group: GroupDescription
    partitions: list[PartitionLag]
    lag: int
    """The sum over all partitions whose lag is known."""
    lag_seconds: float | None
    """The maximum over all partitions where it is known. None if it is known for none of those with lag, or for none at
    all."""

    def first_unread(self) -> dict[TopicPartition, int]:
        """Returns the first unread offset of each partition with lag."""
        return {
            each.at: max(each.committed, each.first_offset)
            for each in self.partitions
            if each.lag and each.committed is not None and each.first_offset is not None
        }


def group_lag_of(
    group: GroupDescription,
    offsets: Mapping[TopicPartition, GroupOffset],
    ends: Mapping[TopicPartition, LogEnds],
    times_ms: Mapping[Unread, int | None],
    now_ms: int,
) -> GroupLag:
    """Computes the lag in every partition that the group has committed or that a member owns. Pure."""
    owners = group.owners()
    partitions = []
    for at in sorted({*offsets, *owners}):
        log = ends.get(at, LogEnds(None, None, "it does not exist"))
        committed = offsets[at].offset if at in offsets else None
        lag = None
        if committed is not None and log.first is not None and log.end is not None:
            lag = lag_of(committed, log.first, log.end)
        unread_ms = None if lag is None or lag.first_unread is None else times_ms.get((at, lag.first_unread))
        owner = owners.get(at)
        partitions.append(
            PartitionLag(
                topic=at.topic,
                partition=at.partition,
                committed=committed,
                first_offset=log.first,
                end_offset=log.end,
                lag=None if lag is None else lag.records,
                lag_seconds=None if lag is None else lag_seconds(lag.records, unread_ms, now_ms),
                missed=None if lag is None else lag.missed,
                member_id=None if owner is None else owner.member_id,
                client_id=None if owner is None else owner.client_id,
                host=None if owner is None else owner.host,
                problem=log.problem,
            )
        )
    return GroupLag(group, partitions, sum(each.lag or 0 for each in partitions), _largest_lag_seconds(partitions))


def _largest_lag_seconds(partitions: list[PartitionLag]) -> float | None:
    """Returns the largest known lag. The 0 of partitions that are read to the end says nothing about unread records of
    unknown age, so it counts only if there is no lag at all."""
    behind = [each for each in partitions if each.lag]
    known_s = [each.lag_seconds for each in behind or partitions if each.lag_seconds is not None]
    return max(known_s, default=None)


async def find_ends(
    brokers: Brokers,
    metadata: Metadata,
    partitions: Collection[TopicPartition],
    *,
    isolation_level: int,
    timeout_ms: float,
) -> dict[TopicPartition, LogEnds]:
    """Returns the ends of logs whose topics are in fresh metadata.

    Partitions that do not exist or have no leader get a problem instead; the call does not wait for them.
    """
    problems = _problems(metadata, partitions)
    led = [at for at in sorted(partitions) if at not in problems]
    first = await list_offsets(
        brokers, metadata, dict.fromkeys(led, EARLIEST), isolation_level=isolation_level, timeout_ms=timeout_ms
    )
    last = await list_offsets(
        brokers, metadata, dict.fromkeys(led, LATEST), isolation_level=isolation_level, timeout_ms=timeout_ms
    )
    found = {at: LogEnds(first[at].offset, last[at].offset) for at in led}
    return {**found, **{at: LogEnds(None, None, problem) for at, problem in problems.items()}}


def _problems(metadata: Metadata, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
    problems: dict[TopicPartition, str] = {}
    for at in partitions:
        view = metadata.cached(at.topic)
        if view is None or at.partition not in view.partitions:
            problems[at] = "it does not exist"
        elif metadata.leader(*at) is None:
            problems[at] = "it has no leader"
    return problems


# The timestamp of the first unread record.


async def timestamps_at(brokers: Brokers, metadata: Metadata, unread: Iterable[Unread]) -> dict[Unread, int | None]:
    """Returns the timestamp of the batch at each offset, or None where it is not available, which is not an error."""
    missing = set(unread)
    found: dict[Unread, int | None] = {}
    for attempt in range(TRIES):
        if attempt and missing:
            await asyncio.sleep(RETRY_PAUSE_S)
            with contextlib.suppress(*PASSING_FAILURES):
                await metadata.refresh()
        for leader, part in _requests(metadata, missing):
            found |= await _timestamps_of(brokers, metadata, leader, part)
        missing -= set(found)
    return {**found, **dict.fromkeys(missing)}


def _requests(metadata: Metadata, unread: Iterable[Unread]) -> list[tuple[int, dict[TopicPartition, int]]]:
    """Groups the partitions by leader. Partitions without a leader are left out."""
    by_leader: dict[int, list[Unread]] = {}
    for at, offset in sorted(unread):
        leader = metadata.leader(*at)
        if leader is not None:
            by_leader.setdefault(leader, []).append((at, offset))
    return [(leader, part) for leader, wanted in by_leader.items() for part in _without_repeats(wanted)]


def _without_repeats(wanted: Iterable[Unread]) -> list[dict[TopicPartition, int]]:
    """Splits the offsets into requests: a request names a partition once, but groups may need several offsets."""
    rounds: list[dict[TopicPartition, int]] = []
    for at, offset in wanted:
        free = next((each for each in rounds if at not in each), None)
        if free is None:
            rounds.append(free := {})
        free[at] = offset
    return rounds


async def _timestamps_of(
    brokers: Brokers, metadata: Metadata, leader: int, wanted: Mapping[TopicPartition, int]
) -> dict[Unread, int | None]:
    """Returns the timestamps that the leader knows.

    A broker returns at least one whole batch and omits others that exceed the requested size. Those are requested again
    with a larger limit.
    """
    found: dict[Unread, int | None] = {}
    missing = dict(wanted)
    fetch_bytes = FETCH_BYTES
    while missing:
        try:
            results = await _fetch(brokers, metadata, leader, missing, fetch_bytes)
        except (ClientError, MalformedRequest):
            break
        answered = {at: result for at, result in results.items() if at in missing and _is_answer(result)}
        if not answered:
            break
        for at, result in answered.items():
            offset = missing.pop(at)
            if not result.error:
                found[at, offset] = _timestamp_ms(result)
        fetch_bytes = min(fetch_bytes * FETCH_BYTES_GROWTH, REPLY_BYTES_MAX)
    return found


def _is_answer(result: FetchedPartition) -> bool:
    return bool(result.error) or len(result.records) >= HEADER_BYTES


def _timestamp_ms(result: FetchedPartition) -> int | None:
    header = read_header(result.records)
    return batch_timestamp_ms(header.base_timestamp, header.max_timestamp, header.is_log_append_time)


async def _fetch(
    brokers: Brokers, metadata: Metadata, leader: int, wanted: Mapping[TopicPartition, int], fetch_bytes: int
) -> dict[TopicPartition, FetchedPartition]:
    connection = await brokers.connection(leader, LOOKUPS)
    version = connection.version_for(FETCH.key, FETCH.versions, FETCH.name)
    topics: dict[TopicKey, list[FetchPartition]] = {}
    names: dict[TopicKey, str] = {}
    for at, offset in wanted.items():
        view = metadata.cached(at.topic)
        if view is None or view.id is None:
            continue
        key: TopicKey = view.id if version >= TOPIC_IDS_FROM else at.topic
        names[key] = at.topic
        topics.setdefault(key, []).append(FetchPartition(at.partition, -1, offset, -1, -1, fetch_bytes))
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=REPLY_BYTES_MAX,
        isolation_level=READ_UNCOMMITTED,
        session_id=0,
        session_epoch=-1,
        topics=list(topics.items()),
        forgotten=[],
        rack_id="",
    )
    body = encode_fetch_request(version, request)
    reply = await connection.request(FETCH.key, version, [body], what="looking up the timestamps of records")
    response = parse_fetch_response(reply, version)
    return {
        TopicPartition(names[key], result.partition): result
        for key, partitions in response.topics
        if key in names
        for result in partitions
    }

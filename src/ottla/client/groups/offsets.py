"""Commits and fetches the offsets of a group, and retries when the coordinator moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ottla.client.brokers import new_backoff
from ottla.client.consumer.types import TopicPartition
from ottla.client.errors import (
    BrokerRefusedError,
    ClientError,
    CommitFailedError,
    RebalancingError,
    error_name,
    refused,
)
from ottla.client.groups.coordinator import OFFSETS, Coordinator
from ottla.client.groups.member import MOVING
from ottla.client.groups.steps import Identity
from ottla.client.metadata import PASSING_FAILURES
from ottla.net.apis import OFFSET_COMMIT, OFFSET_FETCH
from ottla.protocol.model.errors import ErrorCode


class OffsetAndMetadata(NamedTuple):
    """A committed offset, which is that of the next record to read. `metadata` is a note of the program.

    await consumer.commit({("orders", 0): OffsetAndMetadata(record.offset + 1, "nightly run")})
    """

    offset: int
    metadata: str = ""


ToCommit = Mapping[TopicPartition, OffsetAndMetadata]


class GroupProgress(NamedTuple):
    """How far a group's member has read. `member` returns its current identity, or None if it is no longer a member."""

    group_id: str
    offsets: ToCommit
    member: Callable[[], Identity | None]


Committed = dict[TopicPartition, OffsetAndMetadata | None]

GONE_ON = frozenset({ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.fenced_member_epoch})
_TRY_AGAIN = MOVING | {
    ErrorCode.stale_member_epoch,  # the member has a newer epoch by now
    ErrorCode.unstable_offset_commit,  # a transaction that commits offsets is still open
    ErrorCode.request_timed_out,
}


class GroupOffsets:
    """The offsets of one group."""

    def __init__(self, coordinator: Coordinator, request_timeout_ms: int, *, require_stable: bool) -> None:
        self._coordinator = coordinator
        self._timeout_ms = request_timeout_ms
        self._require_stable = require_stable
        self._one_at_a_time = asyncio.Lock()

    async def commit(
        self, offsets: ToCommit, identity: Callable[[], Identity | None], timeout_ms: float | None = None
    ) -> None:
        """Returns when the offsets are committed. Commits keep their order, even across retries."""
        if not offsets:
            return
        async with self._one_at_a_time:
            await self._until_answered(lambda: self._commit_once(offsets, identity()), timeout_ms)

    async def committed(self, partitions: Iterable[TopicPartition]) -> Committed:
        """Returns the committed offsets, or None for a partition without one."""
        wanted = list(partitions)
        found: Committed = {}
        if wanted:
            await self._until_answered(lambda: self._fetch_once(wanted, found), None)
        return found

    async def _until_answered(self, ask: Callable[[], Awaitable[None]], timeout_ms: float | None) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + (self._timeout_ms if timeout_ms is None else timeout_ms) / 1000
        backoff = new_backoff()
        while True:
            try:
                await ask()
                return
            except PASSING_FAILURES as cause:
                failure: ClientError = cause
                self._coordinator.forget()
            except BrokerRefusedError as cause:
                if cause.error not in _TRY_AGAIN:
                    raise
                failure = cause
                if cause.error in MOVING:
                    self._coordinator.forget()
            pause_s = backoff.next_s()
            if loop.time() + pause_s >= deadline_s:
                raise failure
            await asyncio.sleep(pause_s)

    async def _commit_once(self, offsets: ToCommit, identity: Identity | None) -> None:
        if identity is None:
            raise self._not_committed(ErrorCode.unknown_member_id)
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), (offset, metadata) in offsets.items():
            entry = {
                "partition_index": partition,
                "committed_offset": offset,
                "committed_leader_epoch": -1,
                "committed_metadata": metadata,
            }
            topics.setdefault(topic, []).append(entry)
        body = {
            "group_id": self._coordinator.group_id,
            "generation_id_or_member_epoch": identity.generation,
            "member_id": identity.member_id,
            "group_instance_id": identity.instance_id,
            "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        }
        what = f"committing offsets of {self._coordinator.group_text}"
        reply = await self._coordinator.ask(OFFSET_COMMIT, body, purpose=OFFSETS, what=what)
        for topic in reply.topics:
            for each in topic.partitions:
                if each.error_code:
                    raise self._not_committed(each.error_code, f"{topic.name}-{each.partition_index}")

    def _not_committed(self, error: ErrorCode, partition: str = "") -> BrokerRefusedError:
        what = self._coordinator.group_text
        if error in GONE_ON:
            sentence = (
                "nothing was committed: the group has rebalanced without this consumer. The next fetch joins it again"
            )
            return CommitFailedError(error, f"{what}: {sentence} ({error_name(error)})")
        if error is ErrorCode.rebalance_in_progress:
            sentence = "nothing was committed: the group is rebalancing. Fetch, then commit again"
            return RebalancingError(error, f"{what}: {sentence} ({error_name(error)})")
        return refused(error, f"{what}, {partition}" if partition else what)

    async def _fetch_once(self, wanted: list[TopicPartition], found: Committed) -> None:
        topics: dict[str, list[int]] = {}
        for topic, partition in wanted:
            topics.setdefault(topic, []).append(partition)
        group = {
            "group_id": self._coordinator.group_id,
            "member_id": None,
            "member_epoch": -1,
            "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()],
        }
        what = f"fetching the committed offsets of {self._coordinator.group_text}"
        body = {"groups": [group], "require_stable": self._require_stable}
        reply = await self._coordinator.ask(OFFSET_FETCH, body, purpose=OFFSETS, what=what)
        (answer,) = reply.groups
        if answer.error_code:
            raise refused(answer.error_code, self._coordinator.group_text)
        for topic in answer.topics:
            for each in topic.partitions:
                at = TopicPartition(topic.name, int(each.partition_index))
                if each.error_code:
                    raise refused(each.error_code, f"{self._coordinator.group_text}, {at}")
                offset = int(each.committed_offset)
                found[at] = None if offset < 0 else OffsetAndMetadata(offset, each.metadata or "")

"""The client's view of the cluster: its brokers, its topics, and the leader of each partition.

The view is an immutable value that is replaced as a whole. It becomes stale after a while, and at once when a broker
replies that it is not the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from ottla.client.brokers import Brokers, new_backoff
from ottla.client.errors import (
    BrokerRefusedError,
    ConnectionLostError,
    NoBrokerError,
    RequestTimedOutError,
    UnknownTopicError,
    refused,
)
from ottla.net.apis import METADATA, call
from ottla.net.connection import Address
from ottla.protocol.model.errors import ErrorCode

NO_LEADER = -1
PASSING_FAILURES = (NoBrokerError, ConnectionLostError, RequestTimedOutError)
"""Failures to reach a broker, not of the request itself; retrying helps."""

_STILL_COMING = frozenset(
    {ErrorCode.unknown_topic_or_partition, ErrorCode.leader_not_available, ErrorCode.unknown_topic_id}
)


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition and its leader."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic and its partitions."""

    name: str
    id: UUID | None
    partitions: Mapping[int, PartitionView]
    writable: tuple[int, ...]
    """Partitions that have a leader, or all partitions if none has."""
    internal: bool = False


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The brokers and topics of the cluster."""

    cluster_id: str | None = None
    controller_id: int = -1
    nodes: Mapping[int, Address] = field(default_factory=dict)
    topics: Mapping[str, TopicView] = field(default_factory=dict)


class Metadata:
    """The newest view, and at most one refresh in progress."""

    def __init__(self, brokers: Brokers, *, allow_auto_create: bool, max_age_ms: int = 300_000) -> None:
        self.view = ClusterView()
        self._brokers = brokers
        self._allow_auto_create = allow_auto_create
        self._max_age_s = max_age_ms / 1000
        self._topic_errors: dict[str, ErrorCode] = {}
        self._wanted: set[str] = set()
        self._asked_for: frozenset[str] = frozenset()
        """The topics that the newest view covers."""
        self._refreshed_at_s = 0.0
        self._refreshing: asyncio.Task[None] | None = None
        self._stale = True

    @property
    def wanted(self) -> frozenset[str]:
        """The topics that each refresh asks for."""
        return frozenset(self._wanted)

    def want(self, topics: Iterable[str]) -> None:
        """Adds topics to those that each refresh asks for."""
        new = set(topics) - self._wanted
        if new:
            self._wanted |= new
            self._stale = True

    def forget(self, topics: Iterable[str]) -> None:
        """Removes topics from those that each refresh asks for."""
        self._wanted -= set(topics)

    def mark_stale(self) -> None:
        """Requires a refresh, because a broker contradicted the view."""
        self._stale = True

    @property
    def needs_refresh(self) -> bool:
        """Whether the view is stale or too old."""
        age_s = asyncio.get_running_loop().time() - self._refreshed_at_s
        return self._stale or age_s > self._max_age_s

    def cached(self, topic: str) -> TopicView | None:
        """Returns the topic's view if the client has it."""
        return self.view.topics.get(topic)

    def topic_error(self, topic: str) -> ErrorCode | None:
        """Returns why the newest metadata lacks a topic that was asked for."""
        return self._topic_errors.get(topic)

    def leader(self, topic: str, partition: int) -> int | None:
        """Returns the leader's node id, or None if it is unknown."""
        found = self.view.topics.get(topic)
        at = found.partitions.get(partition) if found is not None else None
        return None if at is None or at.leader not in self.view.nodes else at.leader

    async def refresh(self) -> None:
        """Asks a broker once. Concurrent callers share one request."""
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresh())
            self._refreshing.add_done_callback(self._refresh_done)
        await asyncio.shield(self._refreshing)

    def _refresh_done(self, task: asyncio.Task[None]) -> None:
        self._refreshing = None
        if not task.cancelled():
            task.exception()  # marks it as retrieved; only the callers need it

    async def topic(self, name: str, *, timeout_ms: float, unknown_for_ms: float = 2000) -> TopicView:
        """Returns the topic's view, refreshing until the timeout.

        A topic that is being created is unknown for a moment, so that answer is final only if it is still the same
        after `unknown_for_ms`.
        """
        self.want([name])
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        unknown_since_s: float | None = None
        backoff = new_backoff(min_ms=20)
        while True:
            found = self.cached(name)
            if found is not None and not self._stale:
                return found
            failure = await self._try_refresh(name)
            found = self.cached(name)
            if found is not None:
                return found
            now_s = loop.time()
            left_ms = timeout_ms - (now_s - started_s) * 1000
            if isinstance(failure, UnknownTopicError):
                # Counted from the first such reply: a broker that did not reply may have used up the time before.
                unknown_since_s = now_s if unknown_since_s is None else unknown_since_s
                left_ms = min(left_ms, unknown_for_ms - (now_s - unknown_since_s) * 1000)
            else:
                unknown_since_s = None
            if left_ms <= 0:
                raise failure
            await asyncio.sleep(min(backoff.next_s(), max(1.0, left_ms) / 1000))

    async def _try_refresh(self, name: str) -> Exception:
        """Refreshes. Returns why the topic cannot be used if it is still missing."""
        try:
            await self.refresh()
            if name not in self._asked_for:
                await self.refresh()  # the refresh in progress had begun before this topic was wanted
        except PASSING_FAILURES as failure:
            return failure
        error = self._topic_errors.get(name, ErrorCode.unknown_topic_or_partition)
        failure_now: BrokerRefusedError = refused(error, f'topic "{name}"')
        if error not in _STILL_COMING and not error.retriable:
            raise failure_now
        return failure_now

    async def _refresh(self) -> None:
        wanted = sorted(self._wanted)
        connection = await self._brokers.any_connection()
        body = {
            "topics": [{"name": name, "topic_id": None} for name in wanted],
            "allow_auto_topic_creation": self._allow_auto_create,
            "include_topic_authorized_operations": False,
            "include_cluster_authorized_operations": False,
        }
        self._stale = False  # a contradiction that arrives meanwhile requires another refresh
        try:
            reply = await call(connection, METADATA, body, what="requesting the cluster's metadata")
        except BaseException:
            self._stale = True
            raise
        view, self._topic_errors = read_view(reply)
        self._asked_for = frozenset(wanted)
        self.view = newest(self.view, view)
        if self._topic_errors:
            self._stale = True
        self._refreshed_at_s = asyncio.get_running_loop().time()
        self._brokers.update_nodes(self.view.nodes.items())


def newest(known: ClusterView, told: ClusterView) -> ClusterView:
    """Merges a new view into the known one, which wins where it has a later leader epoch.

    A broker that lags behind would otherwise send the client back to a former leader (KIP-320).
    """
    topics = dict(told.topics)
    for name, topic in told.topics.items():
        before = known.topics.get(name)
        if before is None or before.id is None or before.id != topic.id:
            continue
        kept = {
            index: old
            for index, old in before.partitions.items()
            if index in topic.partitions and 0 <= topic.partitions[index].leader_epoch < old.leader_epoch
        }
        if kept:
            topics[name] = _topic_view(name, topic.id, {**topic.partitions, **kept}, topic.internal)
    return replace(told, topics=topics)


async def fetch_all(brokers: Brokers) -> tuple[ClusterView, dict[str, ErrorCode]]:
    """Returns a view of every topic."""
    connection = await brokers.any_connection()
    body = {
        "topics": None,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    }
    return read_view(await call(connection, METADATA, body, what="listing the topics"))


def read_view(reply: Any) -> tuple[ClusterView, dict[str, ErrorCode]]:
    """Returns the view in a Metadata reply, and the errors of topics that cannot be used."""
    topics: dict[str, TopicView] = {}
    errors: dict[str, ErrorCode] = {}
    for entry in reply.topics:
        if entry.error_code:
            errors[entry.name or ""] = entry.error_code
            continue
        topics[entry.name] = _read_topic(entry)
    nodes = {int(broker.node_id): Address(broker.host, int(broker.port)) for broker in reply.brokers}
    return ClusterView(reply.cluster_id, int(reply.controller_id), nodes, topics), errors


def _read_topic(entry: Any) -> TopicView:
    partitions = {
        int(each.partition_index): PartitionView(
            int(each.partition_index),
            NO_LEADER if each.error_code == ErrorCode.leader_not_available else int(each.leader_id),
            int(each.leader_epoch),
            tuple(map(int, each.replica_nodes)),
            tuple(map(int, each.isr_nodes)),
        )
        for each in entry.partitions
    }
    return _topic_view(entry.name, entry.topic_id, partitions, bool(entry.is_internal))


def _topic_view(name: str, topic_id: UUID | None, partitions: Mapping[int, PartitionView], internal: bool) -> TopicView:
    ordered = dict(sorted(partitions.items()))
    led = tuple(index for index, partition in ordered.items() if partition.leader != NO_LEADER)
    return TopicView(name, topic_id, ordered, led or tuple(ordered), internal)

"""Sends markers to the leaders of a transaction's partitions, on this or other brokers.

The leader is looked up on every attempt: a failed send is retried, and by then another broker may lead. A partition of
a deleted topic needs no marker, but the deletion counts only if the cluster image is at least as new as the question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ottla.broker.context import BrokerContext
from ottla.broker.coordinators.led_shards import is_all_known
from ottla.broker.coordinators.peers import PeerAddresses, Peers
from ottla.broker.metadata import Metadata
from ottla.broker.partition.markers import write_marker
from ottla.machines.transactions.effects import WriteMarkers
from ottla.machines.transactions.partition_table import Marker
from ottla.machines.transactions.records import TopicPartition
from ottla.net.apis import ClientApi, call
from ottla.net.connection import Connection
from ottla.protocol.model.errors import ErrorCode

WRITE_TXN_MARKERS = ClientApi(27, "WriteTxnMarkers", (1, 2))
NO_LEADER = -1

Results = Mapping[TopicPartition, ErrorCode]
Report = Callable[[Results], None]


class PeerMarkers(NamedTuple):
    """The partitions of one transaction that one broker has to mark."""

    effect: WriteMarkers
    partitions: tuple[TopicPartition, ...]


class MarkerSender:
    """Sends markers, in batches per broker."""

    def __init__(self, context: BrokerContext, metadata: Metadata) -> None:
        self._context = context
        self._metadata = metadata
        self._peers: Peers[PeerMarkers, Results] = Peers(
            PeerAddresses(context.node_id, metadata.peer_address, context.peer_security), _exchange
        )

    def stop(self) -> None:
        """Disconnects from other brokers. Markers without a reply are reported with NETWORK_EXCEPTION."""
        self._peers.stop()

    async def send(self, effect: WriteMarkers, report: Report) -> None:
        """Sends the markers of a transaction. Every partition is reported to `report`, in one or more calls."""
        leaders = await self._leaders(effect.partitions)
        by_leader: dict[int, list[TopicPartition]] = {}
        for name in sorted(effect.partitions):
            leader = leaders[name]
            if isinstance(leader, ErrorCode):
                self._report_soon(report, {name: leader})
            elif leader == self._context.node_id:
                self._write_here(name, effect, report)
            else:
                by_leader.setdefault(leader, []).append(name)
        sending = [
            self._send_to(leader, PeerMarkers(effect, tuple(names)), report) for leader, names in by_leader.items()
        ]
        await asyncio.gather(*sending)

    def _report_soon(self, report: Report, results: Results) -> None:
        self._context.clock.call_soon(partial(report, results))

    # -- leaders ----------------------------------------------------------------------------------------------

    async def _leaders(self, names: Iterable[TopicPartition]) -> dict[TopicPartition, int | ErrorCode]:
        """Returns the leader of each partition, or an error; ErrorCode.none if the partition was deleted."""
        leaders: dict[TopicPartition, int | ErrorCode | None] = {name: self._leader(name) for name in names}
        is_known = all(leader is not None for leader in leaders.values())
        if not is_known:
            refused = await self._metadata.refresh()
            if refused is not None or not self._metadata.sees_all_topics():
                return {name: _or(leader, ErrorCode.leader_not_available) for name, leader in leaders.items()}
            leaders = {name: self._leader(name) for name in leaders}
        return {name: _or(leader, ErrorCode.none) for name, leader in leaders.items()}

    def _leader(self, name: TopicPartition) -> int | ErrorCode | None:
        """Returns the leader or an error, or None if this broker knows no such partition."""
        topic = self._context.topics.get(name.topic)
        if topic is None:
            return None
        if not is_all_known(topic):
            return ErrorCode.leader_not_available
        if not topic.has(name.partition):
            return None
        leader = topic.layouts[name.partition].leader
        return ErrorCode.leader_not_available if leader == NO_LEADER else leader

    # -- writing ----------------------------------------------------------------------------------------------

    def _write_here(self, name: TopicPartition, effect: WriteMarkers, report: Report) -> None:
        topic = self._context.topics.get(name.topic)
        partition = topic.partition(name.partition) if topic is not None else None
        if partition is None or not partition.is_led_here:
            self._report_soon(report, {name: ErrorCode.not_leader_or_follower})
            return
        marker = Marker(
            effect.producer_id,
            effect.producer_epoch,
            effect.coordinator_epoch,
            effect.is_commit,
            effect.transaction_version,
        )
        now_ms = self._context.clock.now_ms()
        write_marker(partition, marker, now_ms, lambda error: self._report_soon(report, {name: error}))

    async def _send_to(self, leader: int, asked: PeerMarkers, report: Report) -> None:
        results = await self._peers.ask(leader, asked)
        unreached = dict.fromkeys(asked.partitions, ErrorCode.network_exception)
        report({**unreached, **(results or {})})


def _or(leader: int | ErrorCode | None, otherwise: ErrorCode) -> int | ErrorCode:
    return otherwise if leader is None else leader


async def _exchange(connection: Connection, items: Sequence[PeerMarkers]) -> list[Results]:
    body = {"markers": [_marker(item) for item in items]}
    answer = await call(connection, WRITE_TXN_MARKERS, body, what="writing transaction markers")
    # The results are in the order of the request, which may contain a producer twice.
    return [_results(marker) for marker in answer.markers]


def _marker(item: PeerMarkers) -> dict[str, Any]:
    effect = item.effect
    return {
        "producer_id": effect.producer_id,
        "producer_epoch": effect.producer_epoch,
        "transaction_result": effect.is_commit,
        "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in by_topic(item.partitions).items()],
        "coordinator_epoch": effect.coordinator_epoch,
        "transaction_version": effect.transaction_version,
    }


def _results(marker: Any) -> Results:
    return {
        TopicPartition(topic.name, partition.partition_index): ErrorCode(partition.error_code)
        for topic in marker.topics
        for partition in topic.partitions
    }


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Groups partitions by topic."""
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return topics

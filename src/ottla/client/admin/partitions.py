"""Administration of partitions: describe replicas, move them (KIP-455), and elect leaders (KIP-460)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.client.admin.calls import AdminCalls, check
from ottla.client.admin.descriptions import PartitionDescription, Reassignment, describe_partition
from ottla.client.consumer.types import TopicPartition
from ottla.client.errors import BrokerRefusedError, refused
from ottla.client.metadata import fetch_all
from ottla.net.apis import ALTER_PARTITION_REASSIGNMENTS, ELECT_LEADERS, LIST_PARTITION_REASSIGNMENTS
from ottla.protocol.model.errors import ErrorCode

PREFERRED, UNCLEAN = 0, 1
Failures = dict[TopicPartition, BrokerRefusedError]


class PartitionAdmin(AdminCalls):
    """The partition calls of the admin client."""

    async def describe_partitions(self, name: str) -> list[PartitionDescription]:
        """Returns leaders, replicas and in-sync replicas, without offsets and sizes: a single request."""
        view = await self._topic(name)
        return [describe_partition(each) for each in view.partitions.values()]

    async def describe_all_partitions(self) -> dict[str, list[PartitionDescription]]:
        """Returns the partitions of every topic by name, including internal topics."""
        view, _ = await self._again(lambda: fetch_all(self._brokers))
        return {
            topic.name: [describe_partition(each) for each in topic.partitions.values()]
            for topic in sorted(view.topics.values(), key=lambda each: each.name)
        }

    async def alter_partition_reassignments(self, targets: Mapping[tuple[str, int], Sequence[int] | None]) -> Failures:
        """Moves partitions to other replicas, the preferred leader first; None cancels a reassignment in progress.

        Returns the refusals by partition. Accepted ones continue in the background: see `list_partition_reassignments`.
        """
        topics = [
            {
                "name": name,
                "partitions": [{"partition_index": index, "replicas": targets[name, index]} for index in part],
            }
            for name, part in by_topic(targets).items()
        ]
        body = {"timeout": self._timeout, "allow_replication_factor_change": True, "topics": topics}
        what = "moving replicas"
        reply = await self._again(lambda: self._call_controller(ALTER_PARTITION_REASSIGNMENTS, body, what))
        check(reply, what)
        return _failures(
            (TopicPartition(topic.name, int(each.partition_index)), each)
            for topic in reply.responses
            for each in topic.partitions
        )

    async def list_partition_reassignments(
        self, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Returns the reassignments in progress, of all partitions or of some."""
        named = by_topic(partitions) if partitions is not None else None
        topics = None if named is None else [{"name": name, "partition_indexes": part} for name, part in named.items()]
        body = {"timeout": self._timeout, "topics": topics}
        what = "listing the reassignments"
        reply = await self._again(lambda: self._call_controller(LIST_PARTITION_REASSIGNMENTS, body, what))
        check(reply, what)
        return {
            TopicPartition(topic.name, int(each.partition_index)): Reassignment(
                list(map(int, each.replicas)),
                list(map(int, each.adding_replicas)),
                list(map(int, each.removing_replicas)),
            )
            for topic in reply.topics
            for each in topic.partitions
        }

    async def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> Failures:
        """Makes the preferred replicas leaders, of all partitions or of some. Returns the refusals by partition.

        `unclean` elects a leader that may lack acknowledged records for partitions without one. A partition that
        already has the right leader is not a failure.
        """
        named = by_topic(partitions) if partitions is not None else None
        chosen = None if named is None else [{"topic": name, "partitions": part} for name, part in named.items()]
        body = {
            "election_type": UNCLEAN if unclean else PREFERRED,
            "topic_partitions": chosen,
            "timeout": self._timeout,
        }
        what = "electing leaders"
        reply = await self._again(lambda: self._call_controller(ELECT_LEADERS, body, what))
        check(reply, what)
        return _failures(
            (TopicPartition(topic.topic, int(each.partition_id)), each)
            for topic in reply.replica_election_results
            for each in topic.partition_result
            if each.error_code != ErrorCode.election_not_needed
        )


def by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Groups partition numbers by topic."""
    named: dict[str, list[int]] = {}
    for topic, index in partitions:
        named.setdefault(topic, []).append(index)
    return named


def _failures(results: Iterable[tuple[TopicPartition, Any]]) -> Failures:
    return {
        at: refused(each.error_code, f"{at.topic}-{at.partition}", each.error_message)
        for at, each in results
        if each.error_code
    }

"""Asks for the archive's progress: the offset that its group has committed, at a coordinator on this or another
broker."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.broker.coordinators.led_shards import coordinator_of
from ottla.broker.coordinators.peers import PeerAddresses, Peers
from ottla.broker.groups.groups import Groups
from ottla.broker.topics.archive_progress import ProgressQuery
from ottla.broker.topics.topics import Topics
from ottla.machines.groups.placement import OFFSETS_TOPIC
from ottla.machines.groups.replies import FetchOffsetsReply
from ottla.machines.groups.requests import FetchOffsets
from ottla.net.apis import OFFSET_FETCH, call
from ottla.net.connection import Connection
from ottla.protocol.model.errors import ErrorCode


class GroupArchiveProgress:
    """An `ArchiveProgress` that asks the group coordinators. The archive commits to its group only what its manifest
    holds durably, so a reply never exceeds what is archived, however old it is."""

    def __init__(self, topics: Topics, groups: Groups, peer_addresses: PeerAddresses) -> None:
        self._topics = topics
        self._groups = groups
        self._peers: Peers[ProgressQuery, int | None] = Peers(peer_addresses, _exchange, purpose="archive")

    def stop(self) -> None:
        """Closes the connections to other brokers."""
        self._peers.stop()

    async def archived_end(self, asked: ProgressQuery) -> int | None:
        """Returns the offset that the archive's group has committed; None if it cannot be known now."""
        coordinator = coordinator_of(self._topics.get(OFFSETS_TOPIC), asked.group)
        if coordinator is None:
            return None
        if coordinator == self._peers.node_id:
            return await self._ask_here(asked)
        return await self._peers.ask(coordinator, asked)

    async def _ask_here(self, asked: ProgressQuery) -> int | None:
        request = FetchOffsets(group=asked.group, topics=((asked.topic, (asked.partition,)),))
        reply = await self._groups.ask(request, asked.group)
        if not isinstance(reply, FetchOffsetsReply) or reply.error is not ErrorCode.none or not reply.offsets:
            return None
        found = reply.offsets[0]
        return found.value.offset if found.error is ErrorCode.none and found.value is not None else None


async def _exchange(connection: Connection, items: Sequence[ProgressQuery]) -> list[int | None]:
    wanted: dict[str, dict[str, list[int]]] = {}
    for item in set(items):
        wanted.setdefault(item.group, {}).setdefault(item.topic, []).append(item.partition)
    groups = [
        {
            "group_id": group,
            "member_id": None,
            "member_epoch": -1,
            "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()],
        }
        for group, topics in wanted.items()
    ]
    body = {"groups": groups, "require_stable": False}
    answer = await call(connection, OFFSET_FETCH, body, what="fetching the offsets of the archive's group")
    found = {
        ProgressQuery(group.group_id, topic.name, int(each.partition_index)): int(each.committed_offset)
        for group in answer.groups
        if not group.error_code
        for topic in group.topics
        for each in topic.partitions
        if not each.error_code and each.committed_offset >= 0
    }
    return [found.get(item) for item in items]

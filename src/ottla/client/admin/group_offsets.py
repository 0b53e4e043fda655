"""Administration of group offsets: reads committed offsets, and changes those of groups without members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.client.admin.group_calls import MOVING, Answer, GroupAdminCalls, group_text
from ottla.client.admin.group_descriptions import GroupOffset
from ottla.client.admin.group_lag import LogEnds, find_ends
from ottla.client.admin.partitions import by_topic
from ottla.client.consumer.list_offsets import OffsetAndTimestamp, list_offsets
from ottla.client.consumer.types import READ_COMMITTED, READ_UNCOMMITTED, TopicPartition
from ottla.client.errors import BrokerRefusedError, refused
from ottla.net.apis import OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH, call
from ottla.net.connection import Connection
from ottla.protocol.model.errors import ErrorCode

NO_GENERATION = -1
_HAS_MEMBERS = frozenset(
    {
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.rebalance_in_progress,
        ErrorCode.stale_member_epoch,
        ErrorCode.non_empty_group,
    }
)
"""Error codes for a commit by a non-member while the group has members."""


class GroupOffsetAdmin(GroupAdminCalls):
    """The offset calls of the admin client."""

    async def group_offsets(self, group: str) -> dict[TopicPartition, GroupOffset]:
        """Returns all offsets that the group has committed. Empty for a group that does not exist."""
        return (await self.all_group_offsets([group]))[group]

    async def all_group_offsets(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, GroupOffset]]:
        """Returns all committed offsets of several groups."""
        answers = await self._ask_coordinators(groups, _fetch_offsets)
        return {
            name: {
                TopicPartition(topic.name, int(each.partition_index)): GroupOffset(
                    int(each.committed_offset), int(each.committed_leader_epoch), each.metadata or ""
                )
                for topic in answer.checked(name).topics
                for each in topic.partitions
                if not each.error_code and each.committed_offset >= 0
            }
            for name, answer in answers.items()
        }

    async def alter_group_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], GroupOffset | int]
    ) -> dict[TopicPartition, BrokerRefusedError]:
        """Commits offsets on behalf of a group without members, which need not exist yet.

        Returns the refusals by partition. Raises GroupNotEmptyError if there are members: they would not notice, and
        would commit their own offsets again.
        """
        values = {at: GroupOffset(to) if isinstance(to, int) else to for at, to in offsets.items()}
        topics = [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": index,
                        "committed_offset": values[name, index].offset,
                        "committed_leader_epoch": values[name, index].leader_epoch,
                        "committed_metadata": values[name, index].metadata,
                    }
                    for index in part
                ],
            }
            for name, part in by_topic(values).items()
        ]
        body = {
            "group_id": group,
            "generation_id_or_member_epoch": NO_GENERATION,
            "member_id": "",
            "group_instance_id": None,
            "topics": topics,
        }

        async def question(connection: Connection, part: list[str]) -> dict[str, Answer]:
            reply = await call(connection, OFFSET_COMMIT, body, what=f"committing offsets of {group_text(group)}")
            errors = [each.error_code for topic in reply.topics for each in topic.partitions]
            return {group: Answer(_error_of_all(errors), reply)}

        answer = (await self._ask_coordinators([group], question))[group]
        if answer.error in _HAS_MEMBERS:
            raise refused(ErrorCode.non_empty_group, group_text(group))
        return _failures(answer)

    async def delete_group_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, BrokerRefusedError]:
        """Deletes offsets of topics that no member subscribes to. Returns the refusals by partition."""
        topics = [
            {"name": name, "partitions": [{"partition_index": index} for index in part]}
            for name, part in by_topic(partitions).items()
        ]

        async def question(connection: Connection, part: list[str]) -> dict[str, Answer]:
            body = {"group_id": group, "topics": topics}
            reply = await call(connection, OFFSET_DELETE, body, what=f"deleting offsets of {group_text(group)}")
            return {group: Answer(reply.error_code, reply)}

        answer = (await self._ask_coordinators([group], question))[group]
        answer.checked(group)
        return _failures(answer)

    # The logs that the offsets refer to.

    async def log_ends(
        self, partitions: Iterable[tuple[str, int]], *, isolation_level: int = READ_COMMITTED
    ) -> dict[TopicPartition, LogEnds]:
        """Returns both ends of each log, or why they are unknown. Does not wait for deleted topics or lost leaders."""
        wanted = {TopicPartition(*at) for at in partitions}
        topics = {at.topic for at in wanted}
        self._metadata.want(topics)
        await self._again(self._metadata.refresh)
        self._metadata.forget(topic for topic in topics if self._metadata.cached(topic) is None)
        return await find_ends(
            self._brokers, self._metadata, wanted, isolation_level=isolation_level, timeout_ms=self._timeout_ms
        )

    async def offsets_for_time(
        self, partitions: Iterable[tuple[str, int]], timestamp_ms: int
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Returns the first record at or after a time in each partition; the offset is -1 if there is none."""
        wanted = {TopicPartition(*at): timestamp_ms for at in partitions}
        return await list_offsets(
            self._brokers,
            self._metadata,
            wanted,
            isolation_level=READ_UNCOMMITTED,
            timeout_ms=self._timeout_ms,
        )


async def _fetch_offsets(connection: Connection, groups: list[str]) -> dict[str, Answer]:
    wanted = [{"group_id": name, "member_id": None, "member_epoch": -1, "topics": None} for name in groups]
    body = {"groups": wanted, "require_stable": False}
    reply = await call(connection, OFFSET_FETCH, body, what="reading the offsets of groups")
    return {each.group_id: Answer(each.error_code, each) for each in reply.groups}


def _error_of_all(errors: Iterable[ErrorCode]) -> ErrorCode:
    """Returns an error of the group as a whole, which the broker reports for every partition."""
    of_group = (each for each in errors if each in MOVING or each in _HAS_MEMBERS)
    return next(of_group, ErrorCode.none)


def _failures(answer: Answer) -> dict[TopicPartition, BrokerRefusedError]:
    return {
        TopicPartition(topic.name, int(each.partition_index)): refused(
            each.error_code, f"{topic.name}-{each.partition_index}"
        )
        for topic in answer.entry.topics
        for each in topic.partitions
        if each.error_code
    }

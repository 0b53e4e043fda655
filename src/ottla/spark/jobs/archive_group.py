"""Commits an archive's progress to a consumer group, so that retention can wait for it (`ottla.archive.group`).

Only what is durable in the manifest is committed. If a commit fails, the next batch repeats it; until then the broker
merely keeps more records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ottla.client import Admin, ClientError
from ottla.client.consumer.types import TopicPartition

SETTING = "ottla.archive.group"
Warn = Callable[[str], None]


@dataclass(frozen=True)
class ArchiveGroup:
    """The consumer group of an archive."""

    bootstrap: str
    group: str
    warn: Warn

    def tell(self, ends: Mapping[TopicPartition, int]) -> None:
        """Commits the first offset of each partition that is not archived."""
        if not ends:
            return

        async def work() -> None:
            async with Admin(self.bootstrap, client_id="ottla-pipeline") as admin:
                refused = await admin.alter_group_offsets(
                    self.group, {(at.topic, at.partition): end for at, end in ends.items()}
                )
            for failure in refused.values():
                raise failure

        try:
            asyncio.run(work())
        except ClientError as failure:
            self.warn(f"could not commit the archived offsets to the group {self.group}, so retention waits: {failure}")


def groups_that_wait(bootstrap: str, topics: Iterable[str]) -> dict[str, str]:
    """Returns, by topic, the group that its retention waits for.

    Topics without such a group are omitted, and so are all topics of Apache Kafka.
    """

    async def ask() -> dict[str, str | None]:
        async with Admin(bootstrap, client_id="ottla-pipeline") as admin:
            return await admin.describe_topic_configs(topics, SETTING)

    return {topic: group for topic, group in asyncio.run(ask()).items() if group}

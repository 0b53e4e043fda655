"""Retention of topics that wait for their archive (`ottla.archive.group`).

The leader of a partition decides. Whenever retention wants to delete segments, the leader asks for the archive's
progress and acts on that reply alone. No reply is cached, so an operator can reset a group. If the group cannot be
asked, nothing counts as archived, within the configured bounds. Followers delete what is below their leader's log
start, and nothing on their own.

The waiting time of a segment is measured here, from the moment retention first selected it, because records may carry
any timestamp. A new leader starts measuring from zero, so it keeps a segment longer, never shorter.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ottla.broker.context import BrokerContext
from ottla.broker.partition.partition import Partition
from ottla.broker.storage.archive_wait import ArchiveWaitLimits, ExpiredSegment, decide
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.retention import apply_retention
from ottla.broker.storage.segment import Segment
from ottla.broker.topics.archive_progress import ArchiveProgress, ProgressQuery

log = logging.getLogger("ottla.archive")

ASKING_INTERVAL_MS = 1000.0
"""Minimum interval between two questions for a partition. A retention of seconds is checked more often than an archive
makes progress."""


@dataclass(slots=True)
class Wait:
    """The waiting segments of one partition that this broker leads."""

    since_ms: dict[int, float] = field(default_factory=dict)
    """When retention first selected each segment, by base offset."""
    size_bytes: int = 0
    asking: asyncio.Task[None] | None = None
    asked_ms: float = -ASKING_INTERVAL_MS


class ArchiveWaits:
    """Delays the retention of partitions until their records are archived."""

    def __init__(self, context: BrokerContext, progress: ArchiveProgress) -> None:
        self._context = context
        self._progress = progress
        self._waits: dict[Partition, Wait] = {}
        self.deleted_unarchived: Counter[str] = Counter()
        """Number of offsets that were deleted before they were archived, by topic."""

    def waiting_bytes(self, partition: Partition) -> int:
        """Returns the size of the segments of a partition that wait for the archive."""
        wait = self._waits.get(partition)
        return 0 if wait is None else wait.size_bytes

    def look(self, partition: Partition, wall_ms: int) -> None:
        """Deletes segments below the log start at once, since no consumer can read them, and asks the archive about the
        rest."""
        found: list[Segment] = []
        self._retain(partition, wall_ms, partial(_below_start, partition, found))
        if not partition.is_led_here or not found:
            self.forget(partition)
            return
        wait = self._waits.setdefault(partition, Wait())
        now_ms = self._context.clock.monotonic_ms()
        wait.since_ms = {each.base_offset: wait.since_ms.get(each.base_offset, now_ms) for each in found}
        wait.size_bytes = sum(each.appended_end for each in found)
        if wait.asking is None and now_ms - wait.asked_ms >= ASKING_INTERVAL_MS:
            wait.asked_ms = now_ms
            wait.asking = asyncio.ensure_future(self._ask(partition, wait))
            wait.asking.add_done_callback(_report_failure)

    def forget(self, partition: Partition) -> None:
        """Forgets a partition that is led elsewhere, was deleted, or whose topic no longer waits for an archive."""
        wait = self._waits.pop(partition, None)
        if wait is not None and wait.asking is not None:
            wait.asking.cancel()

    def stop(self) -> None:
        """Forgets all partitions."""
        for partition in list(self._waits):
            self.forget(partition)

    async def _ask(self, partition: Partition, wait: Wait) -> None:
        group = partition.topic.config.archive_group
        try:
            archived_end = await self._progress.archived_end(
                ProgressQuery(group, partition.topic.name, partition.index)
            )
        finally:
            wait.asking = None
        is_current = self._waits.get(partition) is wait and partition.topic.config.archive_group == group
        if is_current and partition.is_led_here and not partition.deleted:
            wall_ms = self._context.clock.now_ms()
            self._retain(partition, wall_ms, partial(self._judge, partition, wait, archived_end))

    def _retain(self, partition: Partition, wall_ms: int, going: Callable[[Sequence[Segment]], int]) -> None:
        flusher = self._context.store.flusher
        if isinstance(partition.log, FileLog) and flusher is not None:
            apply_retention(partition.log, flusher, wall_ms, partition.high_watermark, going)

    def _judge(self, partition: Partition, wait: Wait, archived_end: int | None, expired: Sequence[Segment]) -> int:
        """Returns the number of expired segments to delete, from the oldest on."""
        config, now_ms = partition.topic.config, self._context.clock.monotonic_ms()
        passed = _count_passed(partition, expired)
        rest = expired[passed:]
        due = [
            ExpiredSegment(each.end_offset, each.appended_end, now_ms - wait.since_ms.get(each.base_offset, now_ms))
            for each in rest
        ]
        verdict = decide(
            due, archived_end, ArchiveWaitLimits(config.archive_wait_max_bytes, config.archive_wait_max_ms)
        )
        if verdict.given_up:
            self._warn(partition, archived_end, rest[verdict.archived : verdict.going])
        wait.size_bytes = sum(each.appended_end for each in rest[verdict.going :])
        return passed + verdict.going

    def _warn(self, partition: Partition, archived_end: int | None, given_up: Sequence[Segment]) -> None:
        topic, config = partition.topic.name, partition.topic.config
        start = max(given_up[0].base_offset, partition.log.start_offset, archived_end or 0)
        end = given_up[-1].end_offset
        self.deleted_unarchived[topic] += end - start
        how_far = "is not known here" if archived_end is None else f"has come to {archived_end}"
        self._context.shared.report(
            f"{topic}-{partition.index}: DELETED BEFORE THEY WERE ARCHIVED: offsets {start} to {end - 1}. The group "
            f"{config.archive_group} {how_far}, and no more may wait for it than ottla.archive.wait.max.bytes="
            f"{config.archive_wait_max_bytes} and ottla.archive.wait.max.ms={config.archive_wait_max_ms} allow."
        )


def _count_passed(partition: Partition, expired: Sequence[Segment]) -> int:
    start = partition.log.start_offset
    return sum(1 for each in expired if each.end_offset <= start)


def _below_start(partition: Partition, found: list[Segment], expired: Sequence[Segment]) -> int:
    passed = _count_passed(partition, expired)
    found.extend(expired[passed:])
    return passed


def _report_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("could not query the archive's progress", exc_info=task.exception())

"""Retention of topics that wait for their archive (`ottla.archive.group`).

A partition's leader decides. It asks how far the archive is whenever retention wants something gone, and acts on that
answer alone: none is remembered, so a group that an operator has set back is asked anew. Who cannot be asked has
archived nothing, up to the bound. Followers remove what their leader's log has left behind, and nothing of their own.

How long a segment has waited is counted here, from when retention first wanted it: records may carry any time. A new
leader begins to count anew, so it keeps a segment longer, never shorter.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.archive_progress import ArchiveProgress, Asked
from ottla.log.archive_wait import Bounds, Due, decide
from ottla.log.file_log import FileLog
from ottla.log.retention import apply_retention
from ottla.log.segment import Segment

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.broker.partition import Partition

log = logging.getLogger("ottla.archive")

ASKING_INTERVAL_MS = 1000.0
"""A partition asks at most that often: with a retention of seconds it is looked at more often than an archive moves."""


@dataclass(slots=True)
class Wait:
    """Of one partition that is led here."""

    since_ms: dict[int, float] = field(default_factory=dict)
    """When each segment was first wanted gone, by its base offset."""
    size_bytes: int = 0
    asking: asyncio.Task[None] | None = None
    asked_ms: float = -ASKING_INTERVAL_MS


class ArchiveWaits:
    def __init__(self, broker: Broker, progress: ArchiveProgress) -> None:
        self._broker = broker
        self._progress = progress
        self._waits: dict[Partition, Wait] = {}
        self.deleted_unarchived: Counter[str] = Counter()
        """Offsets that went although they were not archived, by topic."""

    def waiting_bytes(self, partition: Partition) -> int:
        wait = self._waits.get(partition)
        return 0 if wait is None else wait.size_bytes

    def look(self, partition: Partition, wall_ms: int) -> None:
        """What is below the log's start goes in any case: nobody can read it. Of the rest the archive is asked."""
        found: list[Segment] = []
        self._retain(partition, wall_ms, partial(_below_start, partition, found))
        if not partition.is_led_here or not found:
            self.forget(partition)
            return
        wait = self._waits.setdefault(partition, Wait())
        now_ms = self._broker.clock.monotonic_ms()
        wait.since_ms = {each.base_offset: wait.since_ms.get(each.base_offset, now_ms) for each in found}
        wait.size_bytes = sum(each.appended_end for each in found)
        if wait.asking is None and now_ms - wait.asked_ms >= ASKING_INTERVAL_MS:
            wait.asked_ms = now_ms
            wait.asking = asyncio.ensure_future(self._ask(partition, wait))
            wait.asking.add_done_callback(_report_failure)

    def forget(self, partition: Partition) -> None:
        """It is led elsewhere, deleted, or its topic waits for nobody any more."""
        wait = self._waits.pop(partition, None)
        if wait is not None and wait.asking is not None:
            wait.asking.cancel()

    def stop(self) -> None:
        for partition in list(self._waits):
            self.forget(partition)

    async def _ask(self, partition: Partition, wait: Wait) -> None:
        group = partition.topic.config.archive_group
        try:
            archived_end = await self._progress.archived_end(Asked(group, partition.topic.name, partition.index))
        finally:
            wait.asking = None
        is_current = self._waits.get(partition) is wait and partition.topic.config.archive_group == group
        if is_current and partition.is_led_here and not partition.deleted:
            wall_ms = self._broker.clock.now_ms()
            self._retain(partition, wall_ms, partial(self._judge, partition, wait, archived_end))

    def _retain(self, partition: Partition, wall_ms: int, going: Callable[[Sequence[Segment]], int]) -> None:
        flusher = self._broker.store.flusher
        if isinstance(partition.log, FileLog) and flusher is not None:
            apply_retention(partition.log, flusher, wall_ms, partition.high_watermark, going)

    def _judge(self, partition: Partition, wait: Wait, archived_end: int | None, expired: Sequence[Segment]) -> int:
        """How many of the oldest expired segments go."""
        config, now_ms = partition.topic.config, self._broker.clock.monotonic_ms()
        passed = _count_passed(partition, expired)
        rest = expired[passed:]
        due = [
            Due(each.end_offset, each.appended_end, now_ms - wait.since_ms.get(each.base_offset, now_ms))
            for each in rest
        ]
        verdict = decide(due, archived_end, Bounds(config.archive_wait_max_bytes, config.archive_wait_max_ms))
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
        self._broker.shared.report(
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
        log.error("how far a topic is archived could not be asked", exc_info=task.exception())

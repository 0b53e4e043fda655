"""Periodic clean-up by each broker: entries of deleted topics, and creations that it abandoned."""

from __future__ import annotations

import asyncio
import logging

from ottla.broker.cluster.commits import commit
from ottla.broker.cluster.membership import Membership
from ottla.broker.cluster.topic_placement import TopicPlacement
from ottla.coordination.port import OutcomeUnknownError, UnavailableError
from ottla.machines.controller.topic_requests import forget_deleted, unfinished_creations
from ottla.machines.controller.writes import Write
from ottla.protocol.model.ids import TopicId

log = logging.getLogger("ottla.cluster")


class CleanUp:
    """Removes obsolete entries from the coordination store."""

    def __init__(self, broker_id: int, membership: Membership, placing: TopicPlacement) -> None:
        self._broker_id = broker_id
        self._membership = membership
        self._placing = placing
        self.creating: set[TopicId] = set()
        """Creations in progress on this broker."""
        self._task: asyncio.Task[None] | None = None

    def deleted_topics(self) -> frozenset[TopicId]:
        """Returns the deleted topics of which this broker may still have logs."""
        deleted = self._membership.image.deleted().items()
        return frozenset(topic_id for topic_id, found in deleted if self._broker_id in found.value.brokers)

    def check(self) -> None:
        """Starts the clean-up that is due, if none is running."""
        is_busy = self._task is not None and not self._task.done()
        if not is_busy and self._membership.is_alive:
            writes = self._due()
            if writes:
                self._task = asyncio.ensure_future(self._carry_out(writes))

    async def stop(self) -> None:
        """Cancels the clean-up in progress. A write in flight may still be applied."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _due(self) -> list[Write]:
        image, member = self._membership.image, self._membership.member
        gone = [topic_id for topic_id in sorted(self.deleted_topics()) if self._placing.is_gone(topic_id)]
        writes = [forget_deleted(image, topic_id, self._broker_id) for topic_id in gone]
        if member is not None and image.creating():
            writes += unfinished_creations(image, member, self.creating)
        return [write for write in writes if write is not None]

    async def _carry_out(self, writes: list[Write]) -> None:
        """Commits the writes. A later check retries those that fail."""
        for write in writes:
            try:
                revision = await commit(self._membership.store, write)
            except (UnavailableError, OutcomeUnknownError):
                return
            if revision is not None:
                log.info("%s", write.why)
                await self._membership.seen(revision)

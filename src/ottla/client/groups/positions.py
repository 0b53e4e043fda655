"""Converts between committed offsets and positions: where a member begins to read, and how far it has read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from ottla.client.brokers import new_backoff
from ottla.client.consumer.partition_reader import PartitionReader
from ottla.client.consumer.types import TopicPartition
from ottla.client.errors import BrokerRefusedError, ClientError
from ottla.client.groups.offsets import GroupOffsets, OffsetAndMetadata, ToCommit
from ottla.client.groups.steps import Identity
from ottla.client.metadata import PASSING_FAILURES

Readers = Mapping[TopicPartition, PartitionReader]


class Positions:
    """The positions of a member. The subscription owns `readers`."""

    def __init__(
        self, offsets: GroupOffsets, readers: Readers, reset_to: int | None, identity: Callable[[], Identity | None]
    ) -> None:
        self._offsets = offsets
        self._readers = readers
        self._reset_to = reset_to
        self._identity = identity
        self._wanted = asyncio.Event()

    # Initial positions.

    def look_up(self) -> None:
        """Triggers a lookup for readers without a position."""
        self._wanted.set()

    async def run(self, found: Callable[[], None]) -> None:
        """Looks up positions whenever triggered and calls `found` after each lookup. Never returns."""
        backoff = new_backoff()
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self.find()
                backoff.reset()
            except (*PASSING_FAILURES, BrokerRefusedError) as failure:
                if isinstance(failure, BrokerRefusedError) and not failure.retriable:
                    self._fail(failure)
                self._wanted.set()
                found()
                await asyncio.sleep(backoff.next_s())
            else:
                found()

    async def find(self) -> None:
        """Sets each reader that needs it to the committed offset of its group."""
        asked = {at: (each, each.generation) for at, each in self._readers.items() if each.wants_committed}
        committed = await self._offsets.committed(asked)
        for at, (reader, generation) in asked.items():
            if reader.generation == generation and reader.wants_committed:
                offset = committed.get(at)
                reader.begin_at_committed(None if offset is None else offset.offset, self._reset_to)

    def _fail(self, failure: ClientError) -> None:
        for reader in self._readers.values():
            if reader.wants_committed:
                reader.failure = failure

    # Progress.

    def handed_out(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the positions, on the user's word that all returned records are processed."""
        return {
            at: OffsetAndMetadata(reader.position)
            for at, reader in self._readers.items()
            if reader.position is not None
        }

    def settled(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the offsets of records that the user has certainly processed and that are not committed yet."""
        return {
            at: OffsetAndMetadata(settled)
            for at, reader in self._readers.items()
            if (settled := reader.settled_position) is not None and settled != reader.committed
        }

    def settle(self) -> None:
        """Marks all returned records as processed."""
        for reader in self._readers.values():
            reader.settle()

    async def commit(self, offsets: ToCommit, timeout_ms: float | None = None) -> None:
        """Commits offsets and remembers them."""
        await self._offsets.commit(offsets, self._identity, timeout_ms)
        for at, (offset, _) in offsets.items():
            if (reader := self._readers.get(at)) is not None:
                reader.committed = offset

    async def commit_settled(self, timeout_ms: float | None = None) -> None:
        """Commits in the background. Ignores failures, because the next commit includes the same offsets."""
        with contextlib.suppress(ClientError):
            await self.commit(self.settled(), timeout_ms)

    async def commit_regularly(self, interval_ms: int) -> None:
        """Commits periodically. Never returns."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await self.commit_settled()

"""Where a member begins to read, and how far it has got: commits become positions, and positions commits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from ottla.client.brokers import Backoff
from ottla.client.errors import BrokerRefusedError, ClientError
from ottla.client.fetched import TopicPartition
from ottla.client.group_offsets import GroupOffsets, OffsetAndMetadata, ToCommit
from ottla.client.group_steps import Identity
from ottla.client.metadata import PASSING_FAILURES
from ottla.client.partition_reader import PartitionReader

Readers = Mapping[TopicPartition, PartitionReader]


class Positions:
    """`readers` belongs to the consumer's subscription. `found` is called when a reader got its position."""

    def __init__(
        self, offsets: GroupOffsets, readers: Readers, reset_to: int | None, identity: Callable[[], Identity | None]
    ) -> None:
        self._offsets = offsets
        self._readers = readers
        self._reset_to = reset_to
        self._identity = identity
        self._wanted = asyncio.Event()

    # Where to begin.

    def look_up(self) -> None:
        """There are readers without a position."""
        self._wanted.set()

    async def run(self, found: Callable[[], None]) -> None:
        """Looks up what is wanted, for ever."""
        backoff = Backoff()
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self.find()
                backoff.succeeded()
            except (*PASSING_FAILURES, BrokerRefusedError) as failure:
                if isinstance(failure, BrokerRefusedError) and not failure.retriable:
                    self._fail(failure)
                self._wanted.set()
                found()
                await asyncio.sleep(backoff.next_pause_ms() / 1000)
            else:
                found()

    async def find(self) -> None:
        """Gives each reader that waits for it the position that its group has committed."""
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

    # How far it has got.

    def handed_out(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions: the user says that it is done with all that it was given."""
        return {
            at: OffsetAndMetadata(reader.position)
            for at, reader in self._readers.items()
            if reader.position is not None
        }

    def settled(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the user is surely done with, as far as the group does not have it yet."""
        return {
            at: OffsetAndMetadata(settled)
            for at, reader in self._readers.items()
            if (settled := reader.settled_position) is not None and settled != reader.committed
        }

    def settle(self) -> None:
        for reader in self._readers.values():
            reader.settle()

    async def commit(self, offsets: ToCommit, timeout_ms: float | None = None) -> None:
        await self._offsets.commit(offsets, self._identity, timeout_ms)
        for at, (offset, _) in offsets.items():
            if (reader := self._readers.get(at)) is not None:
                reader.committed = offset

    async def commit_settled(self, timeout_ms: float | None = None) -> None:
        """For commits that nobody asked for: what does not work now is part of the next one."""
        with contextlib.suppress(ClientError):
            await self.commit(self.settled(), timeout_ms)

    async def commit_regularly(self, interval_ms: int) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await self.commit_settled()

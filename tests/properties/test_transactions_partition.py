"""A partition with transactions through the protocol, compared with a list: accepted writes and results of reads.

Producers of both transaction versions, their coordinator's markers, retries of both, zombies; readers that start at any
offset with small or large fetches.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.produce import PartitionProduced
from tests.support.handlers_caller import calling
from tests.support.transactional_peer import READ_UNCOMMITTED, Peer

NONE = ErrorCode.none


@dataclass
class Producer:
    id: int
    bumps: bool
    """Transaction version 2: each end bumps the epoch."""
    epoch: int = 0
    sequence: int = 0
    written: list[tuple[int, bytes]] = field(default_factory=list)
    last: tuple[bytes, int, int] | None = None
    """Value, sequence and offset of its last batch in this epoch."""

    @property
    def name(self) -> str:
        return f"tx-{self.id}"

    @property
    def version(self) -> int:
        return 12 if self.bumps else 11


@dataclass
class Story:
    peer: Peer
    producers: list[Producer]
    committed: list[tuple[int, bytes]] = field(default_factory=list)
    end: int = 0
    number: int = 0

    async def step(self, kind: str, which: int, flag: bool) -> None:
        producer = self.producers[which % len(self.producers)]
        await getattr(self, kind)(producer, flag)

    async def plain(self, _: Producer, flag: bool) -> None:
        self.number += 1
        value = b"%d" % self.number
        result = await self.peer.produce(value, producer=(-1, -1, -1), transactional=False)
        assert (result.error, result.base_offset) == (NONE, self.end)
        self.committed.append((self.end, value))
        self.end += 1

    async def write(self, producer: Producer, flag: bool) -> None:
        self.number += 1
        value = b"%d" % self.number
        result = await self._produce(producer, value, producer.epoch, producer.sequence)
        assert (result.error, result.base_offset) == (NONE, self.end)
        producer.written.append((self.end, value))
        producer.last = value, producer.sequence, self.end
        producer.sequence += 1
        self.end += 1

    async def retry(self, producer: Producer, flag: bool) -> None:
        if producer.last is not None:
            value, sequence, offset = producer.last
            result = await self._produce(producer, value, producer.epoch, sequence)
            assert (result.error, result.base_offset) == (NONE, offset)

    async def zombie(self, producer: Producer, flag: bool) -> None:
        if producer.epoch > 0:
            result = await self._produce(producer, b"zombie", producer.epoch - 1, 0)
            assert result.error == ErrorCode.invalid_producer_epoch

    async def outside(self, producer: Producer, flag: bool) -> None:
        if producer.written:
            outside = (producer.id, producer.epoch, producer.sequence)
            result = await self.peer.produce(b"outside", producer=outside, transactional=False)
            assert result.error == ErrorCode.invalid_txn_state

    async def end_it(self, producer: Producer, flag: bool) -> None:
        marker_epoch = producer.epoch + producer.bumps
        transaction_version = 2 if producer.bumps else 0
        ended = await self.peer.end(
            (producer.id, marker_epoch), commit=flag, transaction_version=transaction_version, coordinator_epoch=3
        )
        assert ended == [NONE]
        self.end += 1
        self.committed += producer.written if flag else []
        producer.written = []
        if producer.bumps:
            producer.epoch, producer.sequence, producer.last = marker_epoch, 0, None

    async def late_coordinator(self, producer: Producer, flag: bool) -> None:
        if producer.epoch > 0 or producer.written:
            marker_epoch = producer.epoch + producer.bumps
            known = [each for each in await self.peer.describe() if each.producer_id == producer.id]
            if known and known[0].coordinator_epoch > 0:
                ended = await self.peer.end((producer.id, marker_epoch), commit=flag, coordinator_epoch=0)
                assert ended == [ErrorCode.transaction_coordinator_fenced]

    async def _produce(self, producer: Producer, value: bytes, epoch: int, sequence: int) -> PartitionProduced:
        return await self.peer.produce(
            value, producer=(producer.id, epoch, sequence), version=producer.version, transactional_id=producer.name
        )

    async def check(self, from_offset: int, max_bytes: int) -> None:
        first_open = min((each.written[0][0] for each in self.producers if each.written), default=self.end)
        expected = [value for offset, value in sorted(self.committed) if from_offset <= offset < first_open]
        assert await self.peer.committed(from_offset=from_offset, max_bytes=max_bytes) == expected
        read = await self.peer.fetch(isolation=READ_UNCOMMITTED)
        assert read.ends == (first_open, self.end)
        described = {each.producer_id: each.current_txn_start_offset for each in await self.peer.describe()}
        for producer in self.producers:
            first = producer.written[0][0] if producer.written else -1
            assert described.get(producer.id, -1) == first


KINDS = ["plain", "write", "write", "write", "retry", "zombie", "outside", "end_it", "end_it", "late_coordinator"]
steps = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.booleans()), max_size=40)


async def play(told: list[tuple[str, int, bool]], durability: str, part: int, max_bytes: int) -> None:
    async with calling(ottla_durability=durability, transaction_partition_verification_enable="false") as caller:
        topic = await caller.create_topic("t")
        peer = Peer(caller.send, "t", topic.id, caller.broker.clock.now_ms)
        story = Story(peer, [Producer(7, False), Producer(8, True), Producer(9, True)])
        for place, step in enumerate(told):
            await story.step(*step)
            if place % 7 == 6:
                await story.check(story.end * part // 10, max_bytes)
        for from_offset in range(story.end + 1):
            await story.check(from_offset, max_bytes)


@given(steps, st.sampled_from(["disk", "memory"]), st.integers(0, 9), st.sampled_from([1, 300, 1 << 20]))
@settings(max_examples=40, deadline=None)
def test_readers_and_producers(told: list[tuple[str, int, bool]], durability: str, part: int, max_bytes: int) -> None:
    asyncio.run(play(told, durability, part, max_bytes))

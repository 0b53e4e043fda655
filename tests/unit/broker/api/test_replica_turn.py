"""A follower's plain fetch gets the same reply as on the general path, at the same time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from ottla.broker.api import replica_fetch_fast_path as replica_turn
from ottla.broker.api.api import ConnectionState
from ottla.broker.partition.partition import Partition
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.fetch import FetchPartition
from ottla.protocol.wire.replica_wait import API_KEY as WAIT_OVER
from ottla.sim.links import Delay
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench
from tests.unit.broker.cluster.test_cluster_many_partitions import TOPIC, Session, two_of_a_leader, write

SEEDS = range(12)
"""With other seeds a high watermark may move at the moment of a reply, and one of the two paths just misses it."""
STEPS = 25
LATE_MS_MAX = 5
"""An iteration of the simulated loop takes a random time, and the two paths take different numbers of them."""
Answer = dict[int, tuple[ErrorCode, bool, int]]


class Follower:
    """A simulated follower of two partitions that sometimes sends requests no correct follower would."""

    def __init__(self, bench: ClusterBench, session: Session, partitions: list[Partition], rng: random.Random) -> None:
        self._bench = bench
        self._session = session
        self._partitions = partitions
        self._rng = rng
        self._told = {partition.index: 0 for partition in partitions}
        self.heard: list[tuple[int, Answer]] = []

    async def begin(self) -> None:
        await self._fetch(*[self._asked(partition) for partition in self._partitions], wait_ms=0)

    async def step(self) -> None:
        rng = self._rng
        partition = rng.choice(self._partitions)
        busy = rng.choice([partition, partition, *self._partitions])
        doing: Any = rng.choice([self._write, self._write, self._write, self._write_both, self._wait_over, self._idle])
        beside = asyncio.ensure_future(doing(busy))
        change: dict[str, Any] = rng.choice(
            [{}] * 6 + [{"current_leader_epoch": 99}, {"last_fetched_epoch": 0}, {"fetch_offset": 999}]
        )
        wanted = self._asked(partition)._replace(**change)
        await self._fetch(wanted, wait_ms=rng.choice([0, 5, 30, 400, 400]), bytes_max=rng.choice([1, 1 << 20]))
        await beside

    def _asked(self, partition: Partition) -> FetchPartition:
        epoch, end = partition.leader_epoch, self._rng.choice([partition.log.end_offset] * 3 + [0])
        told, acknowledged = self._told[partition.index], self._rng.choice([end, 0])
        return FetchPartition(
            partition.index,
            epoch,
            end,
            epoch,
            0,
            1 << 20,
            high_watermark=told,
            acknowledged_end=acknowledged,
        )

    async def _fetch(self, *wanted: FetchPartition, wait_ms: int, bytes_max: int = 1 << 20) -> None:
        found = await self._session.fetch(*wanted, wait_ms=wait_ms, bytes_max=bytes_max)
        self._told |= {index: watermark for index, (error, _, watermark) in found.items() if not error}
        self.heard.append((round(self._bench.world.clock.monotonic_ms()), found))

    async def _write(self, partition: Partition) -> None:
        await asyncio.sleep(self._rng.choice([0, 0.002, 0.05]))
        await write(self._bench, b"value", partition)

    async def _write_both(self, _: Partition) -> None:
        for partition in self._partitions:
            await write(self._bench, b"value", partition)

    async def _wait_over(self, _: Partition) -> None:
        await asyncio.sleep(0.02)
        self._session._connection.send_unanswered(WAIT_OVER, 0, [])

    async def _idle(self, _: Partition) -> None:
        await asyncio.sleep(self._rng.choice([0.001, 0.6]))


def _conversation(seed: int) -> list[tuple[int, Answer]]:
    with SimWorld(seed) as world:
        # Every message takes the same time, so that differences come from the broker.
        world.network.settings = replace(world.network.settings, delay=Delay(0.0002, spread_s=0.0, tail_share=0.0))
        bench = ClusterBench(world)
        leader, follower, partitions = two_of_a_leader(bench)
        rng = random.Random(seed)

        async def talk() -> list[tuple[int, Answer]]:
            async with Session(bench, leader, follower, TOPIC).open() as session:
                by_hand = Follower(bench, session, partitions, rng)
                await by_hand.begin()
                for _ in range(STEPS):
                    await by_hand.step()
                return by_hand.heard

        return bench.run(talk())


@pytest.mark.parametrize("link_type", [replica_turn.ReplicaLink, replica_turn.PlainReplicaLink])
@pytest.mark.parametrize("seed", SEEDS)
def test_as_the_general_way(
    seed: int, link_type: type[replica_turn.PlainReplicaLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_turn, "ReplicaLink", link_type)
    taken = 0
    original = replica_turn.take

    def counting(*args: Any) -> Any:
        nonlocal taken
        reply = original(*args)
        taken += reply is not None
        return reply

    monkeypatch.setattr(replica_turn, "take", counting)
    short = _conversation(seed)
    assert taken > STEPS / 5, "else this says nothing"
    monkeypatch.setattr(replica_turn, "take", lambda *_: None)
    general = _conversation(seed)
    assert [answer for _, answer in short] == [answer for _, answer in general]
    assert all(abs(one - other) < LATE_MS_MAX for one, other in zip(_waits(short), _waits(general), strict=True))


def _waits(heard: list[tuple[int, Answer]]) -> list[int]:
    return [after - before for (before, _), (after, _) in pairwise(heard)]


def test_a_stream_of_records_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """All fetches except the full ones twice a second."""
    left = 0
    original = replica_turn.take

    def counting(connection: ConnectionState, frame: memoryview) -> Any:
        nonlocal left
        reply = original(connection, frame)
        left += reply is None and bytes(frame[:2]) == b"\x00\x01"
        return reply

    with SimWorld(1) as world:
        bench = ClusterBench(world)
        bench.run(bench.create(TOPIC, ottla_durability="memory"))
        bench.until_in_sync(TOPIC)
        monkeypatch.setattr(replica_turn, "take", counting)
        began_ms = world.clock.monotonic_ms()
        bench.run(bench.write(TOPIC, [b"value"] * 200))
        took_ms = world.clock.monotonic_ms() - began_ms
    assert left <= 2 * (took_ms / 500 + 1) + 4


def _plain(partition: Partition) -> FetchPartition:
    epoch, end = partition.leader_epoch, partition.log.end_offset
    watermark = partition.high_watermark
    return FetchPartition(
        partition.index, epoch, end, epoch, 0, 1 << 20, high_watermark=watermark, acknowledged_end=end
    )


def _answer_while(what: Callable[[Partition], None]) -> tuple[float, Answer]:
    """Returns the delay in ms and the reply of a plain fetch that waits while `what` changes its partition."""
    with SimWorld(1) as world:
        bench = ClusterBench(world)
        leader, follower, (first, second) = two_of_a_leader(bench)

        async def talk() -> tuple[float, Answer]:
            async with Session(bench, leader, follower, TOPIC).open() as session:
                await session.fetch(_plain(first), _plain(second), wait_ms=0)
                await write(bench, b"value", first)
                await session.fetch(wait_ms=400)
                for _ in range(3):  # until nothing new is left
                    await session.fetch(_plain(first), wait_ms=60)
                began_ms = world.clock.monotonic_ms()
                asyncio.get_running_loop().call_later(0.05, what, first)
                answer = await session.fetch(_plain(first), wait_ms=450)
                return world.clock.monotonic_ms() - began_ms, answer

        return bench.run(talk())


def test_who_waits_hears_at_once_that_the_role_is_given_up() -> None:
    took_ms, answer = _answer_while(lambda partition: partition.stand_by(partition.leader_epoch))
    assert [error for error, _, _ in answer.values()] == [ErrorCode.not_leader_or_follower]
    assert took_ms < 100


def test_who_waits_and_is_of_another_epoch_gets_no_records() -> None:
    """A leader that is elected again has another epoch, in which the follower has not reported its end."""

    def lead_again(partition: Partition) -> None:
        assert partition.leading is not None
        partition.lead(partition.leading, partition.leader_epoch + 1)

    took_ms, answer = _answer_while(lead_again)
    assert [error for error, _, _ in answer.values()] == [ErrorCode.fenced_leader_epoch]
    assert took_ms < 100


def test_histories_that_part_are_told() -> None:
    with SimWorld(1) as world:
        bench = ClusterBench(world)
        leader, follower, (first, second) = two_of_a_leader(bench)

        async def talk() -> float:
            async with Session(bench, leader, follower, TOPIC).open() as session:
                await session.fetch(_plain(first), _plain(second), wait_ms=0)
                await write(bench, b"value", first)
                for _ in range(3):
                    await session.fetch(_plain(first), wait_ms=60)
                asked = _plain(first)
                # As if the leader had another epoch for the end of the follower's log.
                first.log.epochs.truncate_from(0)
                first.log.epochs.note(first.leader_epoch, 0)
                first.log.epochs.note(first.leader_epoch + 1, first.log.end_offset - 1)
                began_ms = world.clock.monotonic_ms()
                await session.fetch(asked, wait_ms=450)
                return world.clock.monotonic_ms() - began_ms

        assert bench.run(talk()) < 100

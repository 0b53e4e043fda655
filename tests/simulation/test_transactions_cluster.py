"""Transactions over several partitions and a group's offsets, while brokers are killed, paused and isolated.

Afterwards the logs are compared with the replies to producers: a committed transaction is present once and completely;
an aborted one is not; one with an unknown outcome is present completely or not at all; and every transaction has ended.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

import pytest

from ottla.client.errors import ClientError
from ottla.protocol.model.errors import ErrorCode
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench
from tests.support.transactional_session import PAUSE_S, Reached, Session

NONE = ErrorCode.none
TOPICS = ("orders", "payments")
PARTITIONS = 2
TRANSACTIONS = 12
PRODUCERS = 3
FAULTS = 6


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass
class Told:
    """The outcome that a producer observed for one of its transactions."""

    values: Counter[bytes] = field(default_factory=Counter)
    outcome: Outcome = Outcome.ABORTED
    offset: int = -1


class Worker:
    """A producer, replaced by a new one after an error."""

    def __init__(self, bench: ClusterBench, name: str, dice: random.Random) -> None:
        self.name = name
        self.told: list[Told] = []
        self._bench = bench
        self._dice = dice
        self._version = dice.choice((0, 2))

    async def run(self) -> None:
        session = await self._session()
        for number in range(TRANSACTIONS):
            told = Told()
            self.told.append(told)
            if not await self._transaction(session, number, told):
                session = await self._session()

    async def _session(self) -> Session:
        while True:
            session = Session(self._bench, self.name, version=self._version)
            if await session.init() is NONE:
                return session
            await asyncio.sleep(PAUSE_S)

    async def _transaction(self, session: Session, number: int, told: Told) -> bool:
        for each in range(self._dice.randrange(1, 5)):
            value = f"{self.name}-{number}-{each}".encode()
            topic, partition = self._dice.choice(TOPICS), self._dice.randrange(PARTITIONS)
            if await session.produce(topic, value, partition=partition) is not NONE:
                return False
            told.values[value] += 1
            await asyncio.sleep(self._dice.random())
        if self._dice.random() < 0.5:
            if await session.commit_offset(self.name, TOPICS[0], number + 1) is not NONE:
                return False
            told.offset = number + 1
        is_commit = self._dice.random() < 0.7
        error = await session.end(commit=is_commit)
        if is_commit:
            told.outcome = Outcome.COMMITTED if error is NONE else Outcome.UNKNOWN
        return error is NONE


async def committed(bench: ClusterBench, topic: str, partition: int) -> list[bytes]:
    while True:
        leader = bench.leader(topic, partition)
        if leader != -1:
            replica = bench.partition(leader, topic, partition)
            if replica.last_stable_offset == replica.log.end_offset:
                try:
                    found: list[bytes] = await Reached(bench, leader, topic).run(lambda peer: peer.committed(partition))
                    return found
                except ClientError:
                    pass
        await asyncio.sleep(PAUSE_S)


def make_faults(bench: ClusterBench, dice: random.Random) -> None:
    for _ in range(FAULTS):
        bench.run(asyncio.sleep(dice.uniform(0.2, 3)))
        victim = dice.choice(bench.ids)
        if dice.random() < 0.6:
            bench.kill(victim)
            bench.run(asyncio.sleep(dice.uniform(0.5, 6)))
            bench.boot(victim)
        else:
            others = [bench.name(number) for number in bench.ids if number != victim]
            fault = bench.world.network.cut([bench.name(victim)], others)
            bench.run(asyncio.sleep(dice.uniform(0.5, 6)))
            fault.heal()


@pytest.mark.parametrize("seed", range(4))
def test_transactions_hold_whatever_happens(seed: int) -> None:
    dice = random.Random(seed)
    properties = {"transaction.state.log.num.partitions": "5", "offsets.topic.num.partitions": "3"}
    with SimWorld(seed) as world:
        bench = ClusterBench(world, properties=properties)
        for topic in TOPICS:
            bench.run(bench.create(topic, partitions=PARTITIONS, min_insync_replicas="2"))
        workers = [Worker(bench, f"worker-{number}", random.Random(dice.random())) for number in range(PRODUCERS)]

        async def begin() -> list[asyncio.Task[None]]:
            return [asyncio.ensure_future(worker.run()) for worker in workers]

        async def end() -> None:
            await asyncio.gather(*running)

        running = bench.run(begin())
        make_faults(bench, dice)
        bench.run(end(), timeout_s=1200)
        found: Counter[bytes] = Counter()
        for topic in TOPICS:
            for partition in range(PARTITIONS):
                found.update(bench.run(committed(bench, topic, partition), timeout_s=300))
        for worker in workers:
            check_values(worker, found)
            last = bench.run(Session(bench, "reader").settled_offset(worker.name, TOPICS[0]), timeout_s=300)
            assert last in possible_offsets(worker), worker.told
        assert sum(told.outcome is Outcome.COMMITTED for worker in workers for told in worker.told) > TRANSACTIONS


def check_values(worker: Worker, found: Counter[bytes]) -> None:
    for told in worker.told:
        here = Counter({value: found[value] for value in told.values if found[value]})
        if told.outcome is Outcome.COMMITTED:
            assert here == told.values
        elif told.outcome is Outcome.ABORTED:
            assert not here
        else:
            assert not here or here == told.values


def possible_offsets(worker: Worker) -> set[int]:
    possible = {-1}
    for told in worker.told:
        if told.offset != -1 and told.outcome is Outcome.COMMITTED:
            possible = {told.offset}
        elif told.offset != -1 and told.outcome is Outcome.UNKNOWN:
            possible |= {told.offset}
    return possible

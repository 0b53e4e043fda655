"""When followers leave the ISR and join it, without a periodic look at all partitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.client.producer.producer import Producer
from ottla.coordination.port import HasVersion, Put, Revision
from ottla.machines.controller import keys
from ottla.machines.controller.state import PartitionKey
from ottla.sim.coordination import SimCoordinationClient
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench

TOPIC = "orders"
LAG_MS = 3000
LONG_S = 60.0
NEVER_TRUE = HasVersion("nothing", Revision(1))
CLASSES = ["disk", "cache", "memory"]


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(3) as world:
        yield ClusterBench(world, properties={"replica.lag.time.max.ms": str(LAG_MS)})


def settle(bench: ClusterBench) -> None:
    bench.until(lambda: not any(len(bench.cluster(number)._roles.unsettled) for number in bench.ids))


async def write_one(bench: ClusterBench, index: int = 0) -> None:
    async with Producer(bench.bootstrap, acks=1, idempotence=False) as producer:
        await producer.send(TOPIC, b"value", partition=index)


@pytest.mark.parametrize("durability", CLASSES)
def test_a_follower_that_was_idle_stays_in_sync_when_a_record_comes(
    bench: ClusterBench, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run(bench.create(TOPIC, ottla_durability=durability))
    bench.until_in_sync(TOPIC)
    settle(bench)
    bench.world.run_for(LONG_S)
    leading = bench.partition(bench.leader(TOPIC), TOPIC).leading
    assert leading is not None
    wanted: list[Any] = []
    monkeypatch.setattr(leading, "on_isr_sent", wanted.append)
    bench.run(write_one(bench))
    bench.world.run_for(2 * LAG_MS / 1000)
    assert wanted == []
    settle(bench)


@pytest.mark.parametrize("durability", CLASSES)
def test_a_follower_that_does_not_fetch_leaves_when_a_record_comes(bench: ClusterBench, durability: str) -> None:
    """Its lease lives on: only its connections to other brokers fail."""
    bench.run(bench.create(TOPIC, ottla_durability=durability))
    bench.until_in_sync(TOPIC)
    settle(bench)
    leader = bench.leader(TOPIC)
    silent = next(number for number in bench.ids if number != leader)
    others = [bench.name(number) for number in bench.ids if number != silent]
    cut = bench.world.network.cut([bench.name(silent)], others)
    bench.world.run_for(LONG_S)
    assert len(bench.isr(TOPIC)) == 3  # it lacks nothing
    bench.run(write_one(bench))
    bench.until(lambda: silent not in bench.isr(TOPIC), timeout_s=LAG_MS / 1000 + 1)
    partition = bench.partition(leader, TOPIC)
    bench.until(lambda: partition.high_watermark == 1)
    cut.heal()
    bench.until_in_sync(TOPIC)


def test_a_follower_that_falls_behind_leaves_after_the_time_of_a_lag(bench: ClusterBench) -> None:
    bench.run(bench.create(TOPIC, ottla_durability="memory"))
    bench.until_in_sync(TOPIC)
    settle(bench)
    leader = bench.leader(TOPIC)
    silent = next(number for number in bench.ids if number != leader)
    others = [bench.name(number) for number in bench.ids if number != silent]
    bench.world.network.cut([bench.name(silent)], others)
    bench.run(write_one(bench))
    bench.world.run_for(LAG_MS / 1000 - 1.5)
    assert silent in bench.isr(TOPIC)
    bench.until(lambda: silent not in bench.isr(TOPIC), timeout_s=3)


def test_a_broker_joins_the_isrs_of_many_partitions_in_few_commits(
    bench: ClusterBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 150
    bench.run(bench.create(TOPIC, partitions=count, ottla_durability="memory"))
    for index in range(count):
        bench.until_in_sync(TOPIC, index)
    bench.kill(3)
    bench.until(lambda: all(3 not in bench.isr(TOPIC, index) for index in range(count)))
    commits = []
    original = SimCoordinationClient.commit

    async def counting(self: SimCoordinationClient, conditions: Any, operations: Any) -> Any:
        if any(isinstance(each, Put) and each.key.startswith("partitions/") for each in operations):
            commits.append(len(operations))
        return await original(self, conditions, operations)

    monkeypatch.setattr(SimCoordinationClient, "commit", counting)
    bench.boot(3)
    for index in range(count):
        bench.until_in_sync(TOPIC, index)
    assert sum(commits) >= count
    assert len(commits) <= count / 8


def test_an_isr_change_that_conflicts_does_not_hold_up_the_others(
    bench: ClusterBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 40
    bench.run(bench.create(TOPIC, partitions=count, ottla_durability="memory"))
    for index in range(count):
        bench.until_in_sync(TOPIC, index)
    bench.kill(3)
    bench.until(lambda: all(3 not in bench.isr(TOPIC, index) for index in range(count)))
    original = SimCoordinationClient.commit
    found = bench.broker(1).topics.get(TOPIC)
    assert found is not None
    disputed = keys.partition(PartitionKey(found.id, 0))

    async def conflicting(self: SimCoordinationClient, conditions: Any, operations: Any) -> Any:
        """Acts as if another writer were always faster with one partition."""
        keep = [each for each in conditions if each.key != disputed]
        if len(keep) != len(conditions):
            return await original(self, [*keep, NEVER_TRUE], operations)
        return await original(self, conditions, operations)

    monkeypatch.setattr(SimCoordinationClient, "commit", conflicting)
    bench.boot(3)
    for index in range(1, count):
        bench.until_in_sync(TOPIC, index)
    assert 3 not in bench.isr(TOPIC, 0)
    monkeypatch.setattr(SimCoordinationClient, "commit", original)
    bench.until_in_sync(TOPIC, 0)

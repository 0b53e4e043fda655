"""Manual replica assignments in a cluster: the placement is the requested one, or the request has no effect."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from ottla.client.admin.admin import Admin
from ottla.client.errors import BrokerRefusedError
from ottla.net.apis import CREATE_TOPICS
from ottla.protocol.model.errors import ErrorCode
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench

PLACEMENT = [[3, 1], [1, 2], [2, 3]]
SOON = timedelta(seconds=5)


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(1) as world:
        yield ClusterBench(world, properties={"default.replication.factor": "3"})


def placed(bench: ClusterBench, topic: str) -> list[list[int]]:
    found = bench.broker(1).topics.get(topic)
    assert found is not None
    return [list(layout.replicas) for layout in found.layouts]


def test_topics_and_partitions_are_placed_as_asked(bench: ClusterBench) -> None:
    async def create() -> None:
        async with Admin(bench.bootstrap) as admin:
            await admin.create_topic("orders", assignment=PLACEMENT[:1])
            await admin.create_partitions("orders", 3, assignment=PLACEMENT[1:])

    bench.run(create())
    bench.until(lambda: [bench.leader("orders", index) for index in range(3)] == [3, 1, 2])
    assert placed(bench, "orders") == PLACEMENT


def test_a_topic_of_many_transactions_is_placed_as_asked(bench: ClusterBench) -> None:
    placement = PLACEMENT * 100

    async def create() -> None:
        async with Admin(bench.bootstrap) as admin:
            await admin.create_topic("orders", assignment=placement)

    bench.run(create())
    assert placed(bench, "orders") == placement


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ([[1, 2], [9, 1]], "no such broker is registered"),
        ([[1, 2], [1, 1]], "more than once"),
        ([[1, 2], [3]], "not consistent with previous partitions"),
        ([[1, 2], []], "empty replica list"),
    ],
)
def test_an_invalid_assignment_changes_nothing(bench: ClusterBench, assignment: list[list[int]], words: str) -> None:
    async def create() -> None:
        async with Admin(bench.bootstrap) as admin:
            await admin.create_topic("grows", assignment=[[1, 2]])
            for call in (
                admin.create_topic("orders", assignment=assignment),
                admin.create_topic("orders", assignment=assignment, validate_only=True),
                admin.create_partitions("grows", 1 + len(assignment), assignment=assignment),
                admin.create_partitions("grows", 1 + len(assignment), assignment=assignment, validate_only=True),
            ):
                with pytest.raises(BrokerRefusedError, match=words) as caught:
                    await call
                assert caught.value.error is ErrorCode.invalid_replica_assignment
            with pytest.raises(BrokerRefusedError, match="1 assignment") as caught:
                await admin.create_partitions("grows", 3, assignment=[[1, 2]])
            assert caught.value.error is ErrorCode.invalid_replica_assignment

    bench.run(create())
    assert bench.broker(1).topics.get("orders") is None
    assert placed(bench, "grows") == [[1, 2]]


def test_validate_only_tells_the_counts_and_creates_nothing(bench: ClusterBench) -> None:
    assignments = [{"partition_index": index, "broker_ids": each} for index, each in enumerate(PLACEMENT)]
    asked = [
        {"name": "a", "num_partitions": -1, "replication_factor": -1, "assignments": assignments, "configs": []},
        {"name": "b", "num_partitions": 5, "replication_factor": -1, "assignments": [], "configs": []},
    ]
    body = {"topics": asked, "timeout": SOON, "validate_only": True}
    reply = bench.run(bench.ask(1, CREATE_TOPICS, body))
    assert [(each.error_code, each.num_partitions, each.replication_factor) for each in reply.topics] == [
        (ErrorCode.none, 3, 2),
        (ErrorCode.none, 5, 3),
    ]
    assert len(bench.broker(1).topics) == 0


def test_a_broker_that_is_down_is_assigned_and_joins_later(bench: ClusterBench) -> None:
    """As in Kafka: a known broker may be named while at least one other replica of the partition is alive."""
    bench.kill(3)
    bench.until(lambda: len(bench.broker(1).metadata.nodes()) == 2)

    async def create() -> None:
        async with Admin("broker-1:9092") as admin:
            await admin.create_topic("orders", assignment=[[3, 1]])
            with pytest.raises(BrokerRefusedError, match="unavailable or draining"):
                await admin.create_topic("nowhere", assignment=[[3]])

    bench.run(create())
    assert bench.isr("orders") == (1,)
    bench.boot(3)
    bench.until(lambda: bench.isr("orders") == (1, 3))
    assert placed(bench, "orders") == [[3, 1]]


def test_too_many_partitions_are_refused(bench: ClusterBench) -> None:
    async def create() -> None:
        async with Admin(bench.bootstrap) as admin:
            with pytest.raises(BrokerRefusedError, match="between 1 and 10000"):
                await admin.create_topic("huge", partitions=2**31 - 1)

    bench.run(create())

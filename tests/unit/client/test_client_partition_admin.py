"""The admin client moves replicas and elects leaders, on three brokers in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from ottla.broker.app import BrokerSettings, start_broker
from ottla.client import Admin, TopicPartition
from ottla.client.admin.cluster_report import report_cluster, seats
from ottla.client.admin.replica_plans import BrokerPlacement
from ottla.client.errors import UnknownTopicError
from ottla.protocol.model.errors import ErrorCode
from ottla.testing import Cluster

ORDERS = TopicPartition("orders", 0)
WAIT_S = 60.0


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with Cluster(brokers=3, config={"auto.leader.rebalance.enable": "false"}) as cluster:
        yield cluster


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.02)


async def test_replicas_are_moved(three: Cluster) -> None:
    three.create_topic("orders", partitions=2, replication_factor=2)
    async with Admin(three.bootstrap_servers) as admin:
        first, _ = await admin.describe_partitions("orders")
        (new,) = {1, 2, 3} - set(first.replicas)
        target = [new, first.replicas[0]]
        assert await admin.alter_partition_reassignments({ORDERS: target}) == {}

        async def is_there() -> bool:
            moving = await admin.list_partition_reassignments([ORDERS])
            assert all(each.target == target for each in moving.values())
            return not moving

        async def is_seen() -> bool:
            """By any broker: the controller knows first."""
            moved, _ = await admin.describe_partitions("orders")
            return moved.replicas == target and sorted(moved.isr) == sorted(target)

        await until(is_there)
        await until(is_seen)


async def test_what_is_refused_is_told_by_partition(three: Cluster) -> None:
    three.create_topic("refused", partitions=1, replication_factor=1)
    async with Admin(three.bootstrap_servers) as admin:
        refused = await admin.alter_partition_reassignments(
            {("refused", 0): [1, 9], ("refused", 7): [1], ("no", 0): None}
        )
        assert {str(at): why.error for at, why in refused.items()} == {
            "refused-0": ErrorCode.invalid_replica_assignment,
            "refused-7": ErrorCode.unknown_topic_or_partition,
            "no-0": ErrorCode.unknown_topic_or_partition,
        }
        nothing = await admin.alter_partition_reassignments({("refused", 0): None})
        assert [why.error for why in nothing.values()] == [ErrorCode.no_reassignment_in_progress]
        with pytest.raises(UnknownTopicError):
            await admin.describe_partitions("no")


async def test_the_preferred_replica_is_elected(three: Cluster) -> None:
    three.create_topic("elected", partitions=1, replication_factor=3)
    three.wait_until_in_sync()
    at = ("elected", 0)
    async with Admin(three.bootstrap_servers) as admin:
        (before,) = await admin.describe_partitions("elected")
        order = [*before.replicas[1:], before.replicas[0]]
        assert await admin.alter_partition_reassignments({at: order}) == {}
        assert await admin.elect_leaders([at]) == {}

        async def is_led() -> bool:
            (now,) = await admin.describe_partitions("elected")
            return now.leader == order[0]

        await until(is_led)
        assert await admin.elect_leaders([at]) == {}, "a leader that is right is no failure"
        failed = await admin.elect_leaders([("elected", 5)])
        assert [why.error for why in failed.values()] == [ErrorCode.unknown_topic_or_partition]


async def test_a_report(three: Cluster) -> None:
    three.create_topic("strict", replication_factor=2, min_insync_replicas=2)
    three.wait_until_in_sync()
    async with Admin(three.bootstrap_servers) as admin:
        assert await seats(admin) == [BrokerPlacement(number, "127.0.0.1") for number in (1, 2, 3)]
        healthy = await report_cluster(admin)
        assert healthy.is_healthy
        assert [broker.id for broker in healthy.brokers] == [1, 2, 3]
        victim = three.leader_of("strict")
        assert victim is not None
        three.kill(victim)
        try:

            async def is_missed() -> bool:
                return (await report_cluster(admin)).away == [victim]

            await until(is_missed)
            report = await report_cluster(admin)
            assert not report.is_healthy
            assert ("strict", 0) in {(each.topic, each.partition) for each in report.under_min_isr}
            assert not report.offline or all(each.leader is None for each in report.offline)
        finally:
            three.restart(victim)


async def test_the_advertised_address_is_what_clients_are_told(tmp_path: Path) -> None:
    settings = BrokerSettings(str(tmp_path), port=0, advertised_host="ottla.example.org", advertised_port=19092)
    running = await start_broker(settings)
    try:
        assert running.bootstrap == "ottla.example.org:19092"
    finally:
        await running.stop()

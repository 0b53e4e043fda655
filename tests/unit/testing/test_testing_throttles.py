"""A throttled move on real brokers: set as kafka-reassign-partitions sets it, and removed again."""

from __future__ import annotations

import asyncio

from ottla.client.admin.admin import Admin
from ottla.client.producer.producer import Producer
from ottla.testing import Cluster

LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LEADER_LIST, FOLLOWER_LIST = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
VALUE = b"v" * 100_000
COUNT = 20
WAIT_S = 60.0


async def replicas_in_sync(admin: Admin, topic: str) -> set[int]:
    (partition,) = await admin.describe_partitions(topic)
    return set(partition.isr)


async def until_in_sync(admin: Admin, topic: str, brokers: set[int]) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            if await replicas_in_sync(admin, topic) == brokers:
                return
            await asyncio.sleep(0.05)


async def written(bootstrap: str, admin: Admin, topic: str) -> tuple[int, int]:
    """A topic with two replicas; returns its leader and the broker without a replica."""
    await admin.create_topic(topic, partitions=1, replication_factor=2)
    async with Producer(bootstrap) as producer:
        for _ in range(COUNT):
            await producer.send(topic, VALUE, partition=0)
    (partition,) = await admin.describe_partitions(topic)
    assert partition.leader is not None
    return partition.leader, ({1, 2, 3} - set(partition.replicas)).pop()


async def move_two(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        leader, new = await written(bootstrap, admin, "throttled")
        other_leader, other_new = await written(bootstrap, admin, "free")
        lists = {LEADER_LIST: f"0:{leader}", FOLLOWER_LIST: f"0:{new}"}
        await admin.alter_configs("throttled", set_values=lists)
        for broker_id in (1, 2, 3):
            await admin.alter_configs(broker_id=broker_id, set_values={LEADER_RATE: "1", FOLLOWER_RATE: "1"})
        targets = {("throttled", 0): [leader, new], ("free", 0): [other_leader, other_new]}
        failures = await admin.alter_partition_reassignments(targets)
        assert not any(failures.values()), failures
        await until_in_sync(admin, "free", {other_leader, other_new})
        # At a byte per second, the move takes longer than any test.
        assert new not in await replicas_in_sync(admin, "throttled")
        async with Producer(bootstrap) as producer:
            await producer.send("throttled", b"acknowledged by those in sync", partition=0)
        for broker_id in (1, 2, 3):
            await admin.alter_configs(broker_id=broker_id, delete=[LEADER_RATE, FOLLOWER_RATE])
        await admin.alter_configs("throttled", delete=[LEADER_LIST, FOLLOWER_LIST])
        await until_in_sync(admin, "throttled", {leader, new})


def test_a_throttled_move_waits_until_its_throttle_is_removed() -> None:
    with Cluster(brokers=3, config={"ottla.host.shared": "true"}) as cluster:
        asyncio.run(move_two(cluster.bootstrap_servers))

"""One of three brokers dies between any two steps of a transaction: the leader, its coordinator, or the group's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.client import Consumer, ConsumerRecord, Producer
from ottla.client.brokers import Brokers
from ottla.client.errors import TransactionAbortedError
from ottla.client.groups.coordinator import GROUP_KEY, TRANSACTION_KEY, Coordinator
from ottla.client.metadata import Metadata
from ottla.testing import Cluster
from tests.conformance.own_worker import consumer_of, transformed
from tests.conformance.test_own_transactions import take

STEPS = ("read", "written", "offsets sent", "commit under way", "committed")
AT_ONCE = 5
WAIT_S = 120
NAME = "crashes"
"""The name of the group and the transactional id."""

Crash = Callable[[str], Awaitable[None]]


async def coordinator_of(cluster: Cluster, key_type: int) -> int:
    addresses = cluster.bootstrap_servers.split(",")
    brokers = Brokers(addresses, client_id="test", connect_timeout_ms=5000, request_timeout_ms=5000)
    metadata = Metadata(brokers, allow_auto_create=False, max_age_ms=1000)
    await metadata.refresh()
    connection = await Coordinator(brokers, metadata, NAME, key_type).connection("test")
    found = addresses.index(str(connection.address)) + 1
    await brokers.close()
    return found


async def victim_of(cluster: Cluster, who: str) -> int:
    if who == "leader":
        leader = await asyncio.to_thread(cluster.leader_of, "target")
        assert leader is not None
        return leader
    return await coordinator_of(cluster, GROUP_KEY if who == "the group's coordinator" else TRANSACTION_KEY)


async def transact(consumer: Consumer, producer: Producer, records: list[ConsumerRecord], crash: Crash) -> None:
    await crash("read")
    async with producer.transaction() as transaction:
        for record in records:
            await transaction.enqueue("target", transformed(record))
        await producer.flush()
        await crash("written")
        await transaction.send_offsets(consumer)
        await crash("offsets sent")
        commit = asyncio.create_task(transaction.commit())
        await asyncio.sleep(0)
        await crash("commit under way")
        await commit
    await crash("committed")


@pytest.mark.parametrize("who", ["leader", "the transaction's coordinator", "the group's coordinator"])
async def test_a_broker_dies_between_any_two_steps(who: str) -> None:
    async with Cluster(brokers=3) as cluster, asyncio.timeout(WAIT_S):
        bootstrap = cluster.bootstrap_servers
        for topic in ("source", "target"):
            await asyncio.to_thread(cluster.create_topic, topic)
        values = [b"%d" % number for number in range(AT_ONCE * len(STEPS))]
        async with Producer(bootstrap) as plain:
            for value in values:
                await plain.enqueue("source", value)
        async with (
            consumer_of(bootstrap, NAME, heartbeat_interval_ms=300) as consumer,
            Producer(bootstrap, transactional_id=NAME) as producer,
        ):
            consumer.subscribe(["source"])
            for step in STEPS:
                victim = await one_step(cluster, consumer, producer, who, step)
                await asyncio.to_thread(cluster.start, victim)
                await asyncio.to_thread(cluster.wait_until_in_sync)
        async with Consumer(bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as reader:
            reader.assign([("target", 0)])
            found = [record.value for record in await take(reader, len(values))]
            assert found == [b"=" + value for value in values]
            assert await reader.fetch_records(timeout_ms=200) == []


async def one_step(cluster: Cluster, consumer: Consumer, producer: Producer, who: str, step: str) -> int:
    """Runs one transaction in which a broker dies. Returns that broker."""
    died: list[int] = []

    async def crash(here: str) -> None:
        if here == step and not died:
            died.append(await victim_of(cluster, who))
            await asyncio.to_thread(cluster.kill, died[0])

    while True:
        records = await take(consumer, AT_ONCE)
        try:
            await transact(consumer, producer, records, crash)
        except TransactionAbortedError:
            await consumer.seek_to_committed()
        else:
            return died[0]

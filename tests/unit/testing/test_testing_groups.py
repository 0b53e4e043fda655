"""The waits for consumer groups in `ottla.testing`, with Ottla's consumers and with librdkafka's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import confluent_kafka
import pytest

from ottla.client import Consumer, Producer
from ottla.testing import Cluster

FAST = {"group.initial.rebalance.delay.ms": "0"}


@asynccontextmanager
async def reading(cluster: Cluster, group: str, count: int, protocol: str) -> AsyncIterator[None]:
    """Runs members of a group that read and commit on the test's event loop."""

    async def read() -> None:
        consumer = Consumer(
            cluster.bootstrap_servers,
            group_id=group,
            group_protocol=protocol,  # type: ignore[arg-type] # one of the two
            auto_offset_reset="earliest",
            heartbeat_interval_ms=100,
            auto_commit_interval_ms=50,
        )
        async with consumer:
            consumer.subscribe(["orders"])
            async for _ in consumer:
                pass

    tasks = [asyncio.create_task(read()) for _ in range(count)]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_an_async_test_waits_for_its_own_consumers(protocol: str) -> None:
    async with Cluster(config={**FAST, "group.consumer.heartbeat.interval.ms": "1000"}) as cluster:
        cluster.create_topic("orders", partitions=6)
        async with reading(cluster, "billing", 3, protocol), Producer(cluster.bootstrap_servers) as producer:
            found = await cluster.async_wait_for_assignment("billing", members=3)
            assert sorted(len(member.assigned) for member in found.members) == [2, 2, 2]
            assert len(found.owners()) == 6
            for number in range(300):
                await producer.enqueue("orders", b"x", partition=number % 6)
            await producer.flush()
            lag = await cluster.async_wait_for_lag_zero("billing", ["orders"])
            assert {each.partition: each.committed for each in lag.partitions} == dict.fromkeys(range(6), 50)


def test_a_test_without_an_event_loop() -> None:
    with Cluster(config=FAST) as cluster:
        cluster.create_topic("orders", partitions=2)
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "billing"}
        consumer = confluent_kafka.Consumer({**settings, "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        stopping = threading.Event()

        def poll() -> None:
            while not stopping.is_set():
                if consumer.poll(0.05) is not None:
                    consumer.commit(asynchronous=False)

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            (member,) = cluster.wait_for_assignment("billing").members
            assert member.assigned == [("orders", 0), ("orders", 1)]
            producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
            for number in range(20):
                producer.produce("orders", b"x", partition=number % 2)
            producer.flush()
            assert cluster.wait_for_lag_zero("billing").lag == 0
        finally:
            stopping.set()
            thread.join()
            consumer.close()


async def test_what_a_wait_says_when_it_is_over(ottla: Cluster) -> None:
    ottla.create_topic("orders", partitions=2)
    with pytest.raises(TimeoutError, match=r'group "billing", after 0\.5 s: .*there is no such group'):
        ottla.wait_for_assignment("billing", timeout_s=0.5)
    async with Producer(ottla.bootstrap_servers) as producer:
        await producer.send("orders", b"x", partition=0)
        await producer.send("orders", b"x", partition=1)
    async with Consumer(ottla.bootstrap_servers, group_id="billing") as consumer:
        await consumer.commit({("orders", 0): 1})
        with pytest.raises(TimeoutError, match="it is Empty"):
            await ottla.async_wait_for_assignment("billing", timeout_s=0.5)
        await ottla.async_wait_for_lag_zero("billing")
        with pytest.raises(TimeoutError, match="orders-1: nothing is committed"):
            ottla.wait_for_lag_zero("billing", ["orders"], timeout_s=0.5)
        await consumer.commit({("orders", 1): 0})
        with pytest.raises(TimeoutError, match="orders-1: 0 is committed, the end is 1"):
            ottla.wait_for_lag_zero("billing", timeout_s=0.5)


async def test_members_are_counted(ottla: Cluster) -> None:
    ottla.create_topic("orders")
    async with reading(ottla, "billing", 1, "classic"):
        await ottla.async_wait_for_assignment("billing", members=1)
        with pytest.raises(TimeoutError, match="it has 1 member, not 2"):
            await ottla.async_wait_for_assignment("billing", members=2, timeout_s=0.5)

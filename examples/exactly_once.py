"""Exactly once: the offsets read and the records written are part of one transaction. A worker may die at any time: the
next one resumes, and a read_committed consumer sees each result once.

    python examples/exactly_once.py
"""

from __future__ import annotations

import asyncio
import os
from multiprocessing import get_context

from ottla.client import Consumer, Producer
from ottla.testing import Cluster

ORDERS_TOPIC, BILLS_TOPIC, GROUP = "orders", "bills", "billing"
ORDERS = [b"order 1", b"order 2", b"order 3", b"order 4", b"order 5"]


async def place_orders(bootstrap: str) -> None:
    async with Producer(bootstrap, transactional_id="shop-1") as producer, producer.transaction() as transaction:
        for order in ORDERS:
            await transaction.send(ORDERS_TOPIC, order)


async def work(bootstrap: str, dies_at: bytes | None) -> None:
    consumer = Consumer(
        bootstrap,
        group_id=GROUP,
        group_instance_id="worker-1",  # a worker that restarts with this id gets its partitions back at once
        auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    # The same transactional id after a restart aborts the transaction that the previous worker left open.
    producer = Producer(bootstrap, transactional_id="billing-worker-1")
    async with consumer, producer:
        consumer.subscribe([ORDERS_TOPIC])
        async for record in consumer:
            order = record.value or b""
            async with producer.transaction() as transaction:
                await transaction.send(BILLS_TOPIC, b"bill for " + order)
                print(f"writes a bill for {order.decode()}", flush=True)
                if order == dies_at:
                    print("the worker dies before it has committed", flush=True)
                    os._exit(9)
                await transaction.send_offsets(consumer)
            if order == ORDERS[-1]:
                return


def run_worker(bootstrap: str, dies_at: bytes | None) -> None:
    asyncio.run(work(bootstrap, dies_at))


async def read_bills(bootstrap: str) -> None:
    async with Consumer(bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([BILLS_TOPIC])
        async for record in consumer:
            print(f"a reader sees: {(record.value or b'').decode()}")
            if record.value == b"bill for " + ORDERS[-1]:
                return


def main(bootstrap: str) -> None:
    asyncio.run(place_orders(bootstrap))
    for dies_at in (b"order 3", None):
        worker = get_context("spawn").Process(target=run_worker, args=(bootstrap, dies_at))
        worker.start()
        worker.join()
    asyncio.run(read_bills(bootstrap))


if __name__ == "__main__":
    with Cluster() as cluster:
        cluster.create_topic(ORDERS_TOPIC)
        cluster.create_topic(BILLS_TOPIC)
        main(cluster.bootstrap_servers)

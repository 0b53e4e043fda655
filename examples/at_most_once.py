"""At most once: the worker commits an offset, then processes the record. If it dies in between, a record is skipped.

python examples/at_most_once.py
"""

from __future__ import annotations

import asyncio
import os
from multiprocessing import get_context

from ottla.client import Consumer, Producer
from ottla.testing import Cluster

TOPIC, GROUP = "orders", "shipping"
ORDERS = ["order 1", "order 2", "order 3", "order 4", "order 5"]


async def place_orders(bootstrap: str) -> None:
    # Without acknowledgements there are no retries: a record that does not arrive is lost.
    async with Producer(bootstrap, acks=0, idempotence=False) as producer:
        for order in ORDERS:
            await producer.send(TOPIC, order.encode())


async def work(bootstrap: str, dies_at: str | None) -> None:
    consumer = Consumer(
        bootstrap,
        group_id=GROUP,
        group_instance_id="worker-1",  # a worker that restarts with this id gets its partitions back at once
        auto_commit=False,
        auto_offset_reset="earliest",
    )
    async with consumer:
        consumer.subscribe([TOPIC])
        async for record in consumer:
            order = (record.value or b"").decode()
            await consumer.commit()
            if order == dies_at:
                print(f"the worker dies after it has committed {order}", flush=True)
                os._exit(9)
            print(f"ships {order}", flush=True)
            if order == ORDERS[-1]:
                return


def run_worker(bootstrap: str, dies_at: str | None) -> None:
    asyncio.run(work(bootstrap, dies_at))


def main(bootstrap: str) -> None:
    asyncio.run(place_orders(bootstrap))
    for dies_at in ("order 3", None):
        worker = get_context("spawn").Process(target=run_worker, args=(bootstrap, dies_at))
        worker.start()
        worker.join()


if __name__ == "__main__":
    with Cluster() as cluster:
        cluster.create_topic(TOPIC)
        main(cluster.bootstrap_servers)

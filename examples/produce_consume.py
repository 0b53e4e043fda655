"""Writes records, reads them back, and resumes from a stored position.

python examples/produce_consume.py               # starts and stops its own broker
python examples/produce_consume.py host:port     # uses a running broker
"""

from __future__ import annotations

import asyncio
import sys

from ottla.client import Consumer, Producer
from ottla.testing import Cluster

TOPIC = "example-orders"


async def main(bootstrap: str) -> None:
    async with Producer(bootstrap, compression="lz4") as producer:
        where = await producer.send(TOPIC, b"the first order", key=b"customer-1", headers=[("source", b"example")])
        print(f"acknowledged at {where.topic}-{where.partition}, offset {where.offset}")
        for number in range(10_000):
            await producer.enqueue(TOPIC, b"order %d" % number, key=b"customer-%d" % (number % 100))
        await producer.flush()
        print(f"{producer.acknowledged_count:,} records acknowledged")

    async with Consumer(bootstrap) as consumer:
        consumer.assign([(where.topic, where.partition)])
        consumer.seek((where.topic, where.partition), where.offset)
        async for record in consumer:
            print(f"offset {record.offset}: {record.key!r} {record.value!r}")
            if record.offset >= where.offset + 4:
                break
        position = await consumer.position((where.topic, where.partition))
        print(f"a program that stores {position} goes on there")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with Cluster() as cluster:
            asyncio.run(main(cluster.bootstrap_servers))

"""Writes a million rows to a topic and reads them back as Arrow tables. Needs pyarrow: pip install 'ottla[arrow]'.

python examples/arrow_table.py               # starts and stops its own broker
python examples/arrow_table.py host:port     # uses a running broker
"""

from __future__ import annotations

import asyncio
import sys
import time

import pyarrow as pa
import pyarrow.compute as pc

from ottla.client import Admin, Consumer, Producer
from ottla.client.errors import TopicExistsError
from ottla.testing import Cluster

TOPIC = "example-measurements"
ROWS = 1_000_000


def measurements() -> pa.Table:
    numbers = pa.array(range(ROWS))
    return pa.table(
        {
            "sensor": pc.binary_join_element_wise("sensor", pc.cast(pc.bit_wise_and(numbers, 63), pa.utf8()), "-"),
            "reading": pc.cast(pc.multiply(numbers, 0.5), pa.utf8()),
            "measured_at": pc.add(numbers, int(time.time() * 1000) - ROWS),
        }
    )


async def main(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        try:
            await admin.create_topic(TOPIC, partitions=4)
        except TopicExistsError:
            print(f"{TOPIC} is there from an earlier run")

    table = measurements()
    async with Producer(bootstrap) as producer, Consumer(bootstrap) as consumer:
        consumer.assign(await consumer.partitions(TOPIC))
        await consumer.seek_to_end()

        started = time.perf_counter()
        parts = await producer.send_table(TOPIC, table, key="sensor", value="reading", timestamp="measured_at")
        print(f"{ROWS:,} rows acknowledged in {time.perf_counter() - started:.2f} s")
        for part in parts:
            print(f"  partition {part.partition}: {part.record_count:,} rows from offset {part.base_offset}")

        started = time.perf_counter()
        tables: list[pa.Table] = []
        while sum(each.num_rows for each in tables) < ROWS:
            tables.append(await consumer.fetch_table(timeout_ms=10_000))
        found = pa.concat_tables(tables)
        print(f"{found.num_rows:,} rows read in {time.perf_counter() - started:.2f} s")
        total = pc.sum(pc.cast(pc.cast(found["value"], pa.utf8()), pa.float64())).as_py()
        print(f"the readings add up to {total:,.1f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with Cluster() as cluster:
            asyncio.run(main(cluster.bootstrap_servers))

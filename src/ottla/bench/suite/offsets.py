"""How many records a topic's partitions have."""

from __future__ import annotations

from ottla.bench.suite.ottla_producer import run_on_uvloop
from ottla.client import Consumer


def end_offsets(bootstrap: str, topic: str, partitions: int) -> dict[int, int]:
    async def ask() -> dict[int, int]:
        async with Consumer(bootstrap) as consumer:
            found = await consumer.end_offsets([(topic, index) for index in range(partitions)])
            return {at.partition: offset for at, offset in found.items()}

    return run_on_uvloop(ask())

"""Reads the end offsets of a topic's partitions."""

from __future__ import annotations

import asyncio

from ottla.bench.suite.ottla_producer import run_on_uvloop
from ottla.client import Consumer


def end_offsets(bootstrap: str, topic: str, partitions: int, timeout_s: float | None = None) -> dict[int, int]:
    """Returns the end offsets. Raises TimeoutError if the brokers do not answer within `timeout_s`."""

    async def ask() -> dict[int, int]:
        async with asyncio.timeout(timeout_s), Consumer(bootstrap) as consumer:
            found = await consumer.end_offsets([(topic, index) for index in range(partitions)])
            return {at.partition: offset for at, offset in found.items()}

    return run_on_uvloop(ask())

"""The cost for live writes while a replica that lost its disk catches up: acks=all, three brokers, real processes.

    python benchmarks/catch_up.py [--mb 400] [--data DIR]

The benchmark writes a topic of the given size, stops one broker, removes its directory and restarts it. Meanwhile one
producer writes 1 KB records to another topic, one at a time. Its latencies are printed for two periods: while all
replicas are in sync, and while the broker comes back and reads everything from the others.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ottla.client.admin.admin import Admin
from ottla.client.errors import ClientError
from ottla.client.producer.producer import Producer
from ottla.testing.cluster_processes import ClusterProcesses

OLD, LIVE = "old", "live"
PARTITIONS = 4
RECORD_BYTES = 8000
STEADY_S = 10.0
PAUSE_S = 0.003
VICTIM = 3
IN_SYNC_POLL_S = 0.2
CONFIG = {"ottla.tail.cache.bytes": str(16 << 20), "min.insync.replicas": "2"}
"""A small cache, so that the data to catch up on comes from files."""


async def until_in_sync(bootstrap: str, topic: str) -> None:
    while True:
        try:
            async with Admin(bootstrap) as admin:
                described = await admin.describe_topic(topic)
            if all(len(partition.isr) == 3 for partition in described.partitions):
                return
        except ClientError:
            pass
        await asyncio.sleep(IN_SYNC_POLL_S)


async def fill(bootstrap: str, megabytes: int) -> None:
    value = os.urandom(RECORD_BYTES)
    async with Producer(bootstrap, linger_ms=20) as producer:
        for _ in range(megabytes):
            sent = [producer.send(OLD, value, partition=n % PARTITIONS) for n in range(1_000_000 // RECORD_BYTES)]
            await asyncio.gather(*sent)


async def write_live(bootstrap: str, is_over: Callable[[], bool]) -> list[float]:
    """Returns the latencies in milliseconds, sorted."""
    latencies: list[float] = []
    async with Producer(bootstrap, linger_ms=0) as producer:
        await producer.send(LIVE, b"first", partition=0)
        while not is_over():
            begin_s = time.perf_counter()
            await producer.send(LIVE, b"x" * 1000, partition=len(latencies) % PARTITIONS)
            latencies.append((time.perf_counter() - begin_s) * 1000)
            await asyncio.sleep(PAUSE_S)
    return sorted(latencies)


def show(what: str, latencies: list[float]) -> None:
    p50, p99 = latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]
    print(f"{what}: {len(latencies)} writes, p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {latencies[-1]:.1f} ms")


async def measure(cluster: ClusterProcesses, megabytes: int) -> None:
    bootstrap = cluster.bootstrap
    async with Admin(bootstrap) as admin:
        for topic in (OLD, LIVE):
            await admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    await fill(bootstrap, megabytes)
    for topic in (OLD, LIVE):
        await until_in_sync(bootstrap, topic)
    end_s = time.monotonic() + STEADY_S
    show("all in sync", await write_live(bootstrap, lambda: time.monotonic() >= end_s))
    victim = cluster.broker(VICTIM)
    await asyncio.to_thread(victim.stop)
    shutil.rmtree(victim.data)
    begin_s = time.monotonic()
    await asyncio.to_thread(victim.start)
    caught_up = asyncio.ensure_future(until_in_sync(bootstrap, OLD))
    show("catching up", await write_live(bootstrap, caught_up.done))
    print(f"{megabytes} MB were caught up on after {time.monotonic() - begin_s:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=400, help="amount of data to catch up on")
    parser.add_argument("--data", type=Path, help="a directory on the disk to measure")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="catch-up-", dir=arguments.data, ignore_cleanup_errors=True) as directory,
        ClusterProcesses(Path(directory), config=CONFIG) as cluster,
    ):
        asyncio.run(measure(cluster, arguments.mb))


if __name__ == "__main__":
    main()

"""Measures the duration of a commit, a read and a lease renewal on this machine. ADR 5 has its numbers.

python -m tests.conformance.coordination.measure_commits
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import uvloop

from ottla.bench.quotients import rate
from ottla.coordination.port import Coordination, Put
from ottla.testing.ports import reserve_ports
from tests.conformance.coordination.servers import ServerProcess, ZookeeperServer, etcd_cluster, running
from tests.conformance.coordination.stores import Place

TIMES = 200
CLIENTS = 3
COMMITS_EACH = 100


async def timed(name: str, call: Callable[[], Awaitable[object]]) -> str:
    took_ms: list[float] = []
    for _ in range(TIMES):
        start = time.perf_counter()
        await call()
        took_ms.append((time.perf_counter() - start) * 1000)
    took_ms.sort()
    return f"{name} p50 {took_ms[TIMES // 2]:.2f} p99 {took_ms[TIMES * 99 // 100]:.2f} ms"


async def measure(name: str, place: Place) -> None:
    clients = [await place.client() for _ in range(CLIENTS)]
    client = clients[0]
    lease = await client.open_lease(20_000)
    parts = [
        await timed("commit", lambda: client.commit([], [Put("key", bytes(200))])),
        await timed("get", lambda: client.get("key")),
        await timed("renew", lease.renew),
    ]
    start = time.perf_counter()
    await asyncio.gather(*(commit_often(client, f"key-{number}") for number, client in enumerate(clients)))
    parts.append(f"{CLIENTS} clients {rate(CLIENTS * COMMITS_EACH, time.perf_counter() - start):.0f} commits/s")
    print(f"{name:12}", "; ".join(parts))
    await lease.revoke()
    for client in clients:
        await client.close()


async def commit_often(client: Coordination, key: str) -> None:
    for _ in range(COMMITS_EACH):
        await client.commit([], [Put(key, bytes(200))])


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        uvloop.run(measure("SQLite", Place("sqlite", directory)))
    for size in (1, 3):
        with tempfile.TemporaryDirectory() as directory:
            measure_servers(f"etcd, {size}", "etcd", etcd_cluster(Path(directory), size))
    with tempfile.TemporaryDirectory() as directory:
        measure_servers("ZooKeeper, 1", "zookeeper", [ZookeeperServer(Path(directory), *reserve_ports(1))])


def measure_servers(name: str, kind: str, servers: Sequence[ServerProcess]) -> None:
    with running(servers):
        time.sleep(2)
        uvloop.run(measure(name, Place(kind, ",".join(server.address for server in servers))))


if __name__ == "__main__":
    main()

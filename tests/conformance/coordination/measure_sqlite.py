"""Measures the cost of an idle watch and its latency. ADR 5 has its numbers.

    python -m tests.conformance.coordination.measure_sqlite

Compares the adapter (pipes, a check of leases every 50 ms, a poll every 500 ms) with a plain poll of SQLite's
`data_version` on a thread. The writer is another process, and writes every 100 ms.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time

import uvloop

from ottla.broker.adapters.clock import RealClock
from ottla.coordination.port import Put, Resync, Revision
from ottla.coordination.sqlite import SqliteCoordination

MODULE = "tests.conformance.coordination.measure_sqlite"
WRITES = 40
IDLE_S = 5.0


async def write(directory: str) -> None:
    client = await SqliteCoordination.open(directory, RealClock(asyncio.get_running_loop()))
    lease = await client.open_lease(60_000)
    for number in range(WRITES):
        await asyncio.sleep(0.1)
        await client.commit([], [Put("number", b"%d" % number, lease.id)])
        print(time.monotonic_ns(), flush=True)
    await client.close()


async def measure_adapter(directory: str) -> None:
    client = await SqliteCoordination.open(directory, RealClock(asyncio.get_running_loop()))
    for _ in range(3):
        await client.open_lease(600_000)
    used_s = cpu_s()
    await asyncio.sleep(IDLE_S)
    idle = (cpu_s() - used_s) / IDLE_S
    writer = start_writer(directory)
    seen_ns: list[int] = []
    async for batch in client.watch("number", Revision(0)):
        assert not isinstance(batch, Resync)
        seen_ns.append(time.monotonic_ns())
        if len(seen_ns) == WRITES:
            break
    report("adapter", idle, writer, seen_ns)
    await client.close()


async def prepare(directory: str) -> None:
    client = await SqliteCoordination.open(directory, RealClock(asyncio.get_running_loop()))
    await client.close()


def measure_poll(directory: str, every_ms: float) -> None:
    connection = sqlite3.connect(os.path.join(directory, "coordination.db"), isolation_level=None, timeout=5)
    used_s, until = cpu_s(), time.monotonic() + IDLE_S
    while time.monotonic() < until:
        connection.execute("PRAGMA data_version").fetchone()
        time.sleep(every_ms / 1000)
    idle = (cpu_s() - used_s) / IDLE_S
    writer = start_writer(directory)
    version, seen_ns = connection.execute("PRAGMA data_version").fetchone(), list[int]()
    while len(seen_ns) < WRITES:
        now = connection.execute("PRAGMA data_version").fetchone()
        if now != version:
            version = now
            if connection.execute("SELECT value FROM entries WHERE key = ?", [b"number"]).fetchone():
                seen_ns.append(time.monotonic_ns())
        time.sleep(every_ms / 1000)
    report(f"poll every {every_ms:.0f} ms", idle, writer, seen_ns)


def start_writer(directory: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", MODULE, directory], stdout=subprocess.PIPE)


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def report(name: str, idle: float, writer: subprocess.Popen[bytes], seen_ns: list[int]) -> None:
    written_ns = [int(line) for line in writer.communicate()[0].split()]
    delays_ms = sorted((seen - written) / 1e6 for seen, written in zip(seen_ns, written_ns, strict=True))
    middle, last = delays_ms[len(delays_ms) // 2], delays_ms[-1]
    print(f"{name:18} idle {idle:.2%} of a core; seen p50 {middle:.2f} max {last:.2f} ms after the commit")


def main() -> None:
    if len(sys.argv) > 1:
        asyncio.run(write(sys.argv[1]))
        return
    for every_ms in (0.0, 20.0, 50.0):
        with tempfile.TemporaryDirectory() as directory:
            if every_ms:
                uvloop.run(prepare(directory))
                measure_poll(directory, every_ms)
            else:
                uvloop.run(measure_adapter(directory))


if __name__ == "__main__":
    main()

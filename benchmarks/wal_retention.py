"""How much a log keeps if its records are needed for seconds: by time, by segment, or trimmed by its program.

    python benchmarks/wal_retention.py [--seconds 20] [--retention-s 5] [--rate 2000] [--data DIR]

Three brokers, three replicas. Records of 1 KB go to four logs at the same rate; once a second, the age of the first
record and the size of each log are recorded. `disk` logs delete whole segments, so they need segments that are shorter
than the retention: one of the two has them. The last log has no retention at all; its program trims it once a second to
the younger records, as it would after a snapshot.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

from ottla.cli.output import print_table
from ottla.client import Admin, Consumer, Producer
from ottla.recovery import KafkaLog
from ottla.testing.cluster_processes import ClusterProcesses

RECORD = b"x" * 1000
REPLICAS = 3


@dataclass(slots=True)
class Watched:
    topic: str
    what: str
    configs: dict[str, str]
    is_trimmed: bool = False
    written: int = 0
    most_records: int = 0
    oldest_s: float = 0.0


def logs(retention_ms: int) -> list[Watched]:
    by_time = {"retention.ms": str(retention_ms)}
    seconds = f"{retention_ms / 1000:g} s"
    return [
        Watched("memory", f"`memory`, {seconds}", {"ottla.durability": "memory", **by_time}),
        Watched(
            "short", f"`disk`, {seconds}, segments of a quarter", {"segment.ms": str(retention_ms // 4), **by_time}
        ),
        Watched("long", f"`disk`, {seconds}, segments as they are", by_time),
        Watched(
            "trimmed", "`memory`, trimmed by its program", {"ottla.durability": "memory", "retention.ms": "-1"}, True
        ),
    ]


async def write(bootstrap: str, watched: list[Watched], rate: int, until_s: float) -> None:
    async with Producer(bootstrap, linger_ms=5) as producer:
        began_s = time.monotonic()
        while (now_s := time.monotonic()) < until_s:
            for log in watched:
                while log.written < (now_s - began_s) * rate:
                    await producer.enqueue(log.topic, RECORD)
                    log.written += 1
            await asyncio.sleep(0.01)


async def look(bootstrap: str, log: Watched, retention_ms: int) -> None:
    at = (log.topic, 0)
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([at])
        first = await consumer.fetch_records(1, timeout_ms=2000)
        now_ms = time.time_ns() // 1_000_000
        (end,) = (await consumer.end_offsets([at])).values()
        if first:
            log.most_records = max(log.most_records, end - first[0].offset)
            log.oldest_s = max(log.oldest_s, (now_ms - first[0].timestamp_ms) / 1000)
        if log.is_trimmed:
            (found,) = (await consumer.offsets_for_time({at: now_ms - retention_ms})).values()
            if found is not None:
                await KafkaLog(bootstrap, log.topic).trim(found.offset)


async def run(bootstrap: str, watched: list[Watched], arguments: argparse.Namespace, retention_ms: int) -> None:
    async with Admin(bootstrap) as admin:
        for log in watched:
            await admin.create_topic(log.topic, partitions=1, replication_factor=REPLICAS, configs=log.configs)
    until_s = time.monotonic() + arguments.seconds
    writing = asyncio.create_task(write(bootstrap, watched, arguments.rate, until_s))
    while not writing.done():
        await asyncio.wait([writing], timeout=1.0)
        for log in watched:
            await look(bootstrap, log, retention_ms)
    await writing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--retention-s", type=float, default=5.0)
    parser.add_argument("--rate", type=int, default=2000, help="records a second to each log")
    parser.add_argument("--data", type=Path, help="directory for the brokers' data (default: a temporary one)")
    arguments = parser.parse_args()
    retention_ms = int(arguments.retention_s * 1000)
    watched = logs(retention_ms)
    with (
        tempfile.TemporaryDirectory(prefix="ottla-retention-", dir=arguments.data) as directory,
        ClusterProcesses(Path(directory)) as cluster,
    ):
        uvloop.run(run(cluster.bootstrap, watched, arguments, retention_ms))
        cluster.stop()
    headings = ["log", "records written", "most at once", "its first record was at most s old"]
    shown = [(log.what, f"{log.written:,}", f"{log.most_records:,}", f"{log.oldest_s:.1f}") for log in watched]
    print_table(headings, shown, right=headings[1:])


if __name__ == "__main__":
    main()

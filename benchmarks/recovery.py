"""How fast a state is recovered from its log, and what a snapshot saves.

    python benchmarks/recovery.py [--records 10000000] [--keys 100000] [--workers 2] [--data DIR] [--only TEXT]
        [--json FILE]

One broker in its own process, one partition, entries of 120 bytes. They are replayed into the tables of the key-value
store (`examples/kv`), once completely, and once from a snapshot and the last hundredth. A tenth as many are replayed
into SQLite, as row images and as statements. Tables and row images are also replayed by several processes, in turn with
one. Each state is compared with that of a full replay. CPU time is that of this process and its workers, which read and
apply, not of the broker; on a machine with other work it says more than the wall clock.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import uvloop

from ottla.bench.quotients import per, rate, ratio, times_text
from ottla.cli.output import print_table
from ottla.client import Admin, Producer
from ottla.recovery import (
    Applier,
    KafkaLog,
    Point,
    ReadableLog,
    RowTables,
    SnapshotStore,
    SqliteApplier,
    progress_bar,
    put,
    recover,
    statement,
)
from ottla.recovery.entries import json_values
from ottla.testing.broker_process import BrokerProcess
from ottla.testing.ports import reserve_port
from ottla.wal import Log

SLICE = 100_000
TAIL_SHARE = 100
SQLITE_SHARE = 10
GOAL = 10.0
TURNS = 3
READY_S = 120.0
SCHEMA = "CREATE TABLE IF NOT EXISTS accounts (id INTEGER PRIMARY KEY, n INTEGER, note TEXT);"
COUNTING = "INSERT INTO accounts VALUES (?, 1, ?) ON CONFLICT (id) DO UPDATE SET n = n + 1, note = excluded.note"
TOPIC_CONFIG = {"ottla.durability": "cache", "retention.ms": "-1"}


@dataclass(slots=True)
class Row:
    step: str
    entries: int
    took_s: float
    cpu_s: float
    note: str = ""

    @property
    def entries_per_s(self) -> float:
        return rate(self.entries, self.took_s)

    @property
    def cpu_us(self) -> float:
        return per(self.cpu_s, self.entries) * 1e6


def cpu_s() -> float:
    """Returns the CPU time of this process and its ended children: the workers, but not the running broker."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Clock:
    """Measures wall-clock and CPU time since its creation."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.monotonic(), cpu_s()

    def row(self, step: str, entries: int, note: str = "") -> Row:
        return Row(step, entries, time.monotonic() - self._wall_s, cpu_s() - self._cpu_s, note)


def kv_entries(count: int, keys: int) -> Iterator[list[bytes]]:
    """Yields `put(key, image)` entries with a key of 8 bytes and an image of 100. The header is always the same."""
    chance, head = random.Random(7), put(b"k%07d" % 0, b"")[:12]
    assert head + b"k%07d%0100d" % (1, 2) == put(b"k%07d" % 1, b"%0100d" % 2)
    for first in range(0, count, SLICE):
        numbers = range(first, min(first + SLICE, count))
        yield [head + b"k%07d%0100d" % (int(chance.random() * keys), number) for number in numbers]


def image_entries(count: int, keys: int) -> Iterator[list[bytes]]:
    chance = random.Random(7)
    for first in range(0, count, SLICE):
        rows = [(chance.randrange(keys), number, "x" * 70) for number in range(first, min(first + SLICE, count))]
        yield [put(json_values(row[:1]), json_values(row), table="accounts") for row in rows]


def statement_entries(count: int, keys: int) -> Iterator[list[bytes]]:
    chance = random.Random(7)
    for first in range(0, count, SLICE):
        amount = min(SLICE, count - first)
        yield [statement(COUNTING, [chance.randrange(keys), "x" * 20]) for _ in range(amount)]


async def fill(bootstrap: str, topic: str, slices: Iterator[list[bytes]]) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=1, configs=TOPIC_CONFIG)
    async with Producer(bootstrap, batch_bytes=128 * 1024) as producer:
        for entries in slices:
            await producer.send_table(topic, pa.table({"value": pa.array(entries, pa.binary())}), partition=0)


async def replay(
    step: str, log: ReadableLog, applier: Applier, store: SnapshotStore | None = None, workers: int = 1
) -> Row:
    clock = Clock()
    with progress_bar(step) as bar:
        recovered = await recover(log, applier, snapshots=store, on_progress=bar, workers=workers)
    if store is not None:
        assert recovered.snapshot is not None, "the snapshot was not used"
    return clock.row(step, recovered.entry_count)


async def publish(step: str, log: ReadableLog, applier: Applier, count: int, store: SnapshotStore) -> Row:
    """Publishes a snapshot of all but the last hundredth."""
    taken = await recover(log, applier, until=Point(offset=count - max(1, count // TAIL_SHARE)))
    clock = Clock()
    snapshot = store.publish(applier.dump(), taken.position)
    return clock.row(step, taken.entry_count, f"{snapshot.size_bytes / 1e6:,.1f} MB, on stable storage")


async def both_ways(
    name: str, log: ReadableLog, new: Callable[[], Applier], count: int, store: SnapshotStore
) -> list[Row]:
    """Checks that a full replay, and a snapshot plus the tail, give the same state."""
    full, other = new(), new()
    rows = [await replay(f"{name}: full replay", log, full)]
    rows.append(await publish(f"{name}: publish a snapshot", log, new(), count, store))
    rows.append(await replay(f"{name}: snapshot + tail", log, other, store))
    assert full.digest() == other.digest(), f"{name}: snapshot + tail is not what a full replay gives"
    rows[2].note = f"{comparison(rows[0], rows[2], has_goal=name == 'kv')}; the same state"
    return rows


def comparison(full: Row, tail: Row, *, has_goal: bool) -> str:
    """Describes both ways in a sentence. A small tail can take less CPU time than the clock counts."""
    faster, cpu_less = ratio(full.took_s, tail.took_s), ratio(full.cpu_s, tail.cpu_s)
    met = "" if not has_goal else ", goal met" if faster is None or faster >= GOAL else f", goal of {GOAL:g} missed"
    return f"{times_text(faster, 1)} times faster, {times_text(cpu_less, 1)} times less CPU{met}"


async def by_workers(name: str, log: ReadableLog, new: Callable[[], Applier], workers: int) -> list[Row]:
    """Measures one process and several in turn, so that other work on the machine affects both."""
    rows: list[Row] = []
    for number in range(1, TURNS + 1):
        one, several = new(), new()
        rows.append(await replay(f"{name}: full replay, turn {number}", log, one))
        rows.append(
            await replay(f"{name}: full replay by {workers} workers, turn {number}", log, several, None, workers)
        )
        assert one.digest() == several.digest(), f"{name}: workers do not give what a full replay gives"
        rows[-1].note = f"{times_text(ratio(rows[-2].took_s, rows[-1].took_s))} times faster; the same state"
    return rows


async def kv_steps(bootstrap: str, directory: Path, records: int, keys: int, workers: int) -> list[Row]:
    clock = Clock()
    await fill(bootstrap, "kv", kv_entries(records, keys))
    rows = [clock.row("kv: write the log", records)]
    log = KafkaLog(bootstrap, "kv")
    store = SnapshotStore(directory / "kv-snapshots", keep=1)
    rows += await both_ways("kv", log, RowTables, records, store)
    return rows + await by_workers("kv", log, RowTables, workers)


async def wal_steps(bootstrap: str, wal_servers: str) -> list[Row]:
    """Replays the same log through the WAL service, and compares the tables with those of the Kafka protocol."""
    async with await Log.open(wal_servers, "kv") as log:
        through_wal, through_kafka = RowTables(), RowTables()
        rows = [await replay("kv: full replay through the WAL service", log, through_wal)]
    await recover(KafkaLog(bootstrap, "kv"), through_kafka)
    assert through_wal.digest() == through_kafka.digest()
    return rows


async def sqlite_steps(bootstrap: str, directory: Path, records: int, keys: int, workers: int) -> list[Row]:
    rows: list[Row] = []
    numbers = iter(range(1000))

    def database() -> SqliteApplier:
        return SqliteApplier(sqlite3.connect(directory / f"{next(numbers)}.db"), SCHEMA, by_key=True)

    for name, entries in (("images", image_entries), ("statements", statement_entries)):
        await fill(bootstrap, name, entries(records, keys))
        log, store = KafkaLog(bootstrap, name), SnapshotStore(directory / name, keep=1)
        rows += await both_ways(f"SQLite, {name}", log, database, records, store)
        if name == "images":
            rows += await by_workers(f"SQLite, {name}", log, database, workers)
    return rows


async def run(arguments: argparse.Namespace, broker: BrokerProcess, wal_servers: str, directory: Path) -> list[Row]:
    rows: list[Row] = []
    if arguments.only in "kv":
        rows += await kv_steps(broker.bootstrap, directory, arguments.records, arguments.keys, arguments.workers)
        rows += await wal_steps(broker.bootstrap, wal_servers)
    if arguments.only in "sqlite":
        few = max(1, arguments.records // SQLITE_SHARE)
        rows += await sqlite_steps(broker.bootstrap, directory, few, arguments.keys, arguments.workers)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2, help="number of processes that replay a log together")
    parser.add_argument(
        "--data", type=Path, help="directory for the log, databases and snapshots (default: a temporary one)"
    )
    parser.add_argument("--only", default="", choices=["", "kv", "sqlite"])
    parser.add_argument("--json", type=Path, help="append the rows to this file, one per line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-recovery-", dir=arguments.data) as name:
        directory = Path(name)
        wal_port = reserve_port()
        config = {"ottla.wal.port": str(wal_port)}
        with BrokerProcess(directory / "broker", config=config, ready_timeout_s=READY_S) as broker:
            rows = uvloop.run(run(arguments, broker, f"127.0.0.1:{wal_port}", directory))
    headings = ["step", "entries", "s", "entries/s", "CPU s", "CPU us an entry", "note"]
    shown = [
        (
            row.step,
            f"{row.entries:,}",
            f"{row.took_s:.2f}",
            f"{row.entries_per_s:,.0f}",
            f"{row.cpu_s:.2f}",
            f"{row.cpu_us:.2f}",
            row.note,
        )
        for row in rows
    ]
    print_table(headings, shown, right=headings[1:-1])
    if arguments.json:
        with arguments.json.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(row)) + "\n" for row in rows)


if __name__ == "__main__":
    main()

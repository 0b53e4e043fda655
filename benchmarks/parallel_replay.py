"""Does it pay to apply a log by key, in several threads or processes? Into SQLite, which works without Python's lock.

    python benchmarks/parallel_replay.py [--rows 300000] [--shards 2] [--runs 3] [--data DIR]

Row images of one log go into one database, or by the checksum of their key into several: each of them in a thread, or
in a process that gets its rows through a pipe. In turns, so that what else the machine does hits all of them. CPU is
that of all processes together. (A table in memory is not tried: it takes less time than a pipe.)
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

from crc32c import crc32c

from ottla.cli.output import print_table
from ottla.recovery import Kind, Position, SqliteApplier
from ottla.recovery.appliers import Run
from ottla.recovery.entries import json_values

KEYS = 100_000
CHUNK = 30_000
SCHEMA = "CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, n INTEGER, note TEXT);"


def chunks_of(count: int) -> list[Run]:
    chance = random.Random(7)
    numbers = [(chance.randrange(KEYS), number, "x" * 60) for number in range(count)]
    runs = [numbers[first : first + CHUNK] for first in range(0, count, CHUNK)]
    return [
        Run(Kind.PUT, "rows", [json_values(row[:1]) for row in rows], [json_values(row) for row in rows])
        for rows in runs
    ]


def split(run: Run, shards: int) -> list[Run]:
    parts = [Run(run.kind, run.table, [], []) for _ in range(shards)]
    for key, image in zip(run.keys, run.payloads, strict=True):
        part = parts[crc32c(key) % shards]
        part.keys.append(key)
        part.payloads.append(image)
    return parts


def open_applier(path: Path) -> SqliteApplier:
    return SqliteApplier(sqlite3.connect(path, check_same_thread=False), SCHEMA)


def in_one(chunks: list[Run], directory: Path, shards: int) -> None:
    applier = open_applier(directory / "one.db")
    for run in chunks:
        applier.apply([run], Position())


def in_threads(chunks: list[Run], directory: Path, shards: int) -> None:
    appliers = [open_applier(directory / f"thread-{number}.db") for number in range(shards)]
    with ThreadPoolExecutor(shards) as pool:
        for run in chunks:
            parts = split(run, shards)
            for done in [
                pool.submit(each.apply, [part], Position()) for each, part in zip(appliers, parts, strict=True)
            ]:
                done.result()


def in_processes(chunks: list[Run], directory: Path, shards: int) -> None:
    workers = []
    for number in range(shards):
        ours, theirs = multiprocessing.Pipe()
        worker = multiprocessing.Process(target=work, args=(theirs, directory / f"process-{number}.db"))
        worker.start()
        workers.append((worker, ours))
    for run in chunks:
        for (_, ours), part in zip(workers, split(run, shards), strict=True):
            ours.send(part)
    for _, ours in workers:
        ours.send(None)
    for worker, _ in workers:
        worker.join()
        assert worker.exitcode == 0


def work(theirs: Connection, path: Path) -> None:
    applier = open_applier(path)
    while (run := theirs.recv()) is not None:
        applier.apply([run], Position())


def cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--data", type=Path, help="where the databases go; a temporary directory else")
    arguments = parser.parse_args()
    chunks = chunks_of(arguments.rows)
    ways: dict[str, Callable[[list[Run], Path, int], None]] = {
        "one applier": in_one,
        f"{arguments.shards} threads": in_threads,
        f"{arguments.shards} processes": in_processes,
    }
    rows: list[tuple[str, ...]] = []
    for number in range(1, arguments.runs + 1):
        first_s = 0.0
        for name, way in ways.items():
            with tempfile.TemporaryDirectory(prefix="ottla-parallel-", dir=arguments.data) as directory:
                began_s, began_cpu_s = time.monotonic(), cpu_s()
                way(chunks, Path(directory), arguments.shards)
                took_s, took_cpu_s = time.monotonic() - began_s, cpu_s() - began_cpu_s
            first_s = first_s or took_s
            rate = f"{arguments.rows / took_s:,.0f}"
            rows.append((str(number), name, rate, f"{first_s / took_s:.2f}", f"{took_cpu_s:.2f}"))
    print_table(["run", "way", "rows/s", "of one applier", "CPU s"], rows, right=["rows/s", "of one applier", "CPU s"])


if __name__ == "__main__":
    main()

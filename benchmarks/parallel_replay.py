"""Whether it pays to replay a log by key in several threads or processes, and how to divide the work.

    python benchmarks/parallel_replay.py [--rows 300000] [--shards 2] [--runs 3] [--data DIR]

With SQLite, the row images of one log go into one database, or into several by the checksum of their key. Each of these
is in a thread, or in a process that gets its rows through a pipe. With tables in memory, ten times as many rows come
from a file, in three ways: one process reads them all; one process reads and sends each row to the process that owns
its key, and gets the tables back; or several processes each read ranges of the file and keep the last image of each
key, and one merges them (as `recover(workers=...)` does). The ways take turns, so that other work on the machine
affects all of them. CPU time is that of all processes together.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pickle
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from crc32c import crc32c

from ottla.bench.quotients import rate, ratio, times_text
from ottla.cli.output import print_table
from ottla.recovery import END, Kind, Position, Replayer, RowTables, SqliteApplier, put
from ottla.recovery.appliers import Run
from ottla.recovery.entries import json_values
from ottla.recovery.entry_runs import split_run
from ottla.recovery.logs import Columns
from ottla.recovery.reducer import Reducer

KEYS = 100_000
CHUNK = 30_000
TABLES_SHARE = 10
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


# Tables in memory.


def write_log(path: Path, count: int) -> None:
    """Writes chunks of entries one after another, and an index of where each begins."""
    chance, places = random.Random(7), []
    with path.open("wb") as file:
        for first in range(0, count, CHUNK):
            numbers = range(first, min(first + CHUNK, count))
            places.append((first, file.tell()))
            pickle.dump([put(b"k%07d" % chance.randrange(KEYS), b"%0100d" % number) for number in numbers], file)
    path.with_suffix(".places").write_bytes(pickle.dumps(places))


def read_log(path: Path, part: int = 0, parts: int = 1) -> Iterator[Columns]:
    """Reads the whole log, or one of several parts."""
    places = pickle.loads(path.with_suffix(".places").read_bytes())
    share = -(-len(places) // parts)
    with path.open("rb") as file:
        for first, place in places[part * share : (part + 1) * share]:
            file.seek(place)
            data = pickle.load(file)
            yield Columns(range(first, first + len(data)), [0] * len(data), data)


def tables_in_one(path: Path, shards: int) -> bytes:
    tables = RowTables()
    replayer = Replayer(tables)
    for columns in read_log(path):
        replayer.feed(columns)
    return tables.digest()


def tables_by_key(path: Path, shards: int) -> bytes:
    with Team(shards, keep_rows) as team:
        for columns in read_log(path):
            run = Run(Kind.PUT, "", [], [])
            split_run(list(columns.data), 0, run.keys, run.payloads)
            for ours, part in zip(team.pipes, split(run, shards), strict=True):
                ours.send(part)
        tables = RowTables()
        for ours in team.pipes:
            ours.send(None)
        for ours in team.pipes:
            tables.rows.update(ours.recv())
    return tables.digest()


def keep_rows(theirs: Connection) -> None:
    rows: dict[bytes, bytes] = {}
    while (run := theirs.recv()) is not None:
        rows.update(zip(run.keys, run.payloads, strict=True))
    theirs.send(rows)


def tables_by_range(path: Path, shards: int) -> bytes:
    with Team(shards, reduce_range) as team:
        for number, ours in enumerate(team.pipes):
            ours.send((path, number, shards))
        tables = RowTables()
        replayer = Replayer(tables)
        for ours in team.pipes:
            for piece in ours.recv():
                replayer.feed_piece(piece)
    return tables.digest()


def reduce_range(theirs: Connection) -> None:
    reducer = Reducer(0, END)
    for columns in read_log(*theirs.recv()):
        reducer.feed(columns)
    reducer.end()
    theirs.send(reducer.take_pieces())


class Team:
    def __init__(self, count: int, target: Callable[[Connection], None]) -> None:
        pairs = [multiprocessing.Pipe() for _ in range(count)]
        self.pipes = [ours for ours, _ in pairs]
        self._processes = [multiprocessing.Process(target=target, args=(theirs,)) for _, theirs in pairs]

    def __enter__(self) -> Team:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.join()


def cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--data", type=Path, help="directory for the databases (default: a temporary one)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-parallel-", dir=arguments.data) as directory:
        rows = measure_databases(arguments) + measure_tables(arguments, Path(directory))
    print_table(["run", "way", "rows/s", "of one", "CPU s"], rows, right=["rows/s", "of one", "CPU s"])


def measure_databases(arguments: argparse.Namespace) -> list[tuple[str, ...]]:
    chunks = chunks_of(arguments.rows)
    ways: dict[str, Callable[[list[Run], Path, int], None]] = {
        "SQLite: one": in_one,
        f"SQLite: {arguments.shards} threads by key": in_threads,
        f"SQLite: {arguments.shards} processes by key": in_processes,
    }
    rows: list[tuple[str, ...]] = []
    for number in range(1, arguments.runs + 1):
        clock = Clock(number, arguments.rows, rows)
        for name, way in ways.items():
            with (
                tempfile.TemporaryDirectory(prefix="ottla-parallel-", dir=arguments.data) as directory,
                clock.times(name),
            ):
                way(chunks, Path(directory), arguments.shards)
    return rows


def measure_tables(arguments: argparse.Namespace, directory: Path) -> list[tuple[str, ...]]:
    count, path = arguments.rows * TABLES_SHARE, directory / "log"
    write_log(path, count)
    ways: dict[str, Callable[[Path, int], bytes]] = {
        "tables: one": tables_in_one,
        f"tables: {arguments.shards} processes by key": tables_by_key,
        f"tables: {arguments.shards} processes by range": tables_by_range,
    }
    rows: list[tuple[str, ...]] = []
    for number in range(1, arguments.runs + 1):
        clock, digests = Clock(number, count, rows), set()
        for name, way in ways.items():
            with clock.times(name):
                digests.add(way(path, arguments.shards))
        assert len(digests) == 1, "the states differ"
    return rows


class Clock:
    """Times one run of all ways, and compares each with the first."""

    def __init__(self, number: int, count: int, rows: list[tuple[str, ...]]) -> None:
        self._number, self._count, self._rows = number, count, rows
        self._first_s = 0.0

    @contextmanager
    def times(self, name: str) -> Iterator[None]:
        began_s, began_cpu_s = time.monotonic(), cpu_s()
        yield
        took_s, took_cpu_s = time.monotonic() - began_s, cpu_s() - began_cpu_s
        self._first_s = self._first_s or took_s
        speed, times = f"{rate(self._count, took_s):,.0f}", times_text(ratio(self._first_s, took_s))
        self._rows.append((str(self._number), name, speed, times, f"{took_cpu_s:.2f}"))


if __name__ == "__main__":
    main()

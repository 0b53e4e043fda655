"""The journal against one sync for each partition: the table of docs/adr/0002-journal.md.

    python benchmarks/journal.py [--seconds 1.2] [--rounds 1] [--directory DIR] [--profile]

A request is one record batch that is acknowledged after stable storage. Clients are callbacks in the same process. Each
sends its next request when the previous one is acknowledged, so "64 in flight" means 64 such clients, spread over the
partitions. There are no sockets, and segments are not written: this is the limit of the disk and the journal.

    per partition   each partition has its own file; requests that arrive during its sync wait for the next one
    buffered        one file for all partitions, written through the page cache and synced
    journal         `ottla.broker.storage.journal` on the real disk adapter
    serial          one write and one fdatasync per request, one after another, in a plain loop

All four write the same bytes through the same disk thread (serial: without it). With several rounds, the best result of
each measurement counts, which is the least disturbed one on a shared machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import os
import pstats
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

import uvloop
from rich.console import Console
from rich.table import Table

from ottla.bench.quotients import rate, ratio, times_text
from ottla.broker.adapters.clock import RealClock
from ottla.broker.adapters.disk import RealDisk
from ottla.broker.storage.journal import Journal, JournalLimits, pack_key
from ottla.ports import DataFile, ReadOnlyBuffer
from ottla.protocol.model.ids import LogKey, PartitionIndex, TopicId
from ottla.protocol.records.batch import HEADER_BYTES, BatchHeader, checksum, stamp, write_header

WARM_UP_S = 0.4
RING = JournalLimits(ring_bytes_max=64 << 20)


@dataclass(frozen=True, slots=True)
class Load:
    in_flight: int
    partition_count: int
    batch_bytes: int

    def __str__(self) -> str:
        size = f"{self.batch_bytes // 1024} KB"
        return f"{self.in_flight} in flight, {self.partition_count} partition(s), {size}"


@dataclass(frozen=True, slots=True)
class Result:
    requests_per_s: float
    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        return f"{self.requests_per_s:,.0f}  {self.p50_ms:.2f} / {self.p99_ms:.2f} ms"


class Batch:
    """A client's only batch, stamped again for each request."""

    def __init__(self, size_bytes: int) -> None:
        data = bytearray(HEADER_BYTES) + os.urandom(size_bytes - HEADER_BYTES)
        header = BatchHeader(0, size_bytes - 12, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
        write_header(data, header)
        header = header._replace(crc=checksum(data))
        write_header(data, header)
        self.view = memoryview(data)
        self._rest = header[1:]

    def at(self, offset: int) -> BatchHeader:
        stamp(self.view, offset, 0)
        return BatchHeader._make((offset, *self._rest))


class Target(Protocol):
    """Accepts requests and calls `on_durable(partition, end offset)` once everything below that offset is durable."""

    on_durable: Callable[[int, int], None]

    def send(self, partition: int, header: BatchHeader, batch: memoryview) -> None: ...


class BenchLog:
    def __init__(self, partition: int, target: JournalTarget) -> None:
        self.partition = partition
        self.journal_key = pack_key(LogKey(TopicId(UUID(int=1)), PartitionIndex(partition)))
        self._target = target

    def on_journaled(self, end_offset: int) -> None:
        self._target.on_durable(self.partition, end_offset)

    def on_journal_failed(self, error: OSError) -> None:
        raise error


class JournalTarget:
    def __init__(self, disk: RealDisk, clock: RealClock, directory: str, partition_count: int) -> None:
        self.on_durable: Callable[[int, int], None] = _ignore
        self._logs = [BenchLog(partition, self) for partition in range(partition_count)]
        self.journal = Journal.open(
            disk, clock, f"{directory}/journal", bytes(16), released=0, limits=RING, on_pressure=self._release
        )
        self._append = self.journal.append_batch

    def send(self, partition: int, header: BatchHeader, batch: memoryview) -> None:
        self._append(self._logs[partition], header, batch)

    def _release(self) -> None:
        """Releases journal space at once, because there are no segments to sync here."""
        while self.journal.under_pressure and (oldest := self.journal.oldest()) is not None:
            self.journal.release(oldest[0])


class GroupedFile:
    """A growing file that is written and synced in groups: requests that arrive during a sync wait for the next one."""

    def __init__(self, disk: RealDisk, path: str, on_synced: Callable[[dict[int, int]], None]) -> None:
        self._queue = disk.journal_queue
        self._file: DataFile = disk.files.open(path, create=True)
        self._on_synced = on_synced
        self._position = 0
        self._waiting: list[ReadOnlyBuffer] = []
        self._ends: dict[int, int] = {}
        self._busy = False

    def append(self, partition: int, end_offset: int, batch: memoryview) -> None:
        self._waiting.append(batch)
        self._ends[partition] = end_offset
        if not self._busy:
            self._busy = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        if not self._waiting:
            self._busy = False
            return
        buffers, self._waiting = self._waiting, []
        ends, self._ends = self._ends, {}
        self._queue.write(self._file, self._position, buffers, _raise)
        self._position += sum(map(len, buffers))
        self._queue.sync(self._file, lambda error: self._done(error, ends))

    def _done(self, error: OSError | None, ends: dict[int, int]) -> None:
        _raise(error)
        self._start()
        self._on_synced(ends)


class FilesTarget:
    """One grouped file for each partition, or one for all of them."""

    def __init__(self, disk: RealDisk, directory: str, partition_count: int, *, shared: bool) -> None:
        self.on_durable: Callable[[int, int], None] = _ignore
        names = ["buffered"] if shared else [f"partition-{partition}" for partition in range(partition_count)]
        files = [GroupedFile(disk, f"{directory}/{name}", self._on_synced) for name in names]
        self._files = files * partition_count if shared else files

    def send(self, partition: int, header: BatchHeader, batch: memoryview) -> None:
        self._files[partition].append(partition, header.next_offset, batch)

    def _on_synced(self, ends: dict[int, int]) -> None:
        for partition, end in ends.items():
            self.on_durable(partition, end)


class Clients:
    """Sends requests and measures the time from each one to its acknowledgement."""

    def __init__(self, target: Target, load: Load) -> None:
        target.on_durable = self._on_durable
        self._send = target.send
        self._load = load
        self._ends = [0] * load.partition_count
        self._sent: list[deque[tuple[int, float, Batch]]] = [deque() for _ in range(load.partition_count)]
        self._taken: list[float] = []
        self._stopped = False
        self._drained = asyncio.Event()

    async def run(self, seconds: float) -> Result:
        for client in range(self._load.in_flight):
            self._next(client % self._load.partition_count, Batch(self._load.batch_bytes))
        await asyncio.sleep(WARM_UP_S)
        self._taken.clear()
        start = time.perf_counter()
        await asyncio.sleep(seconds)
        taken, self._taken = sorted(self._taken), []
        elapsed = time.perf_counter() - start
        self._stopped = True
        await self._drained.wait()
        return result_of(taken, elapsed)

    def _next(self, partition: int, batch: Batch) -> None:
        end = self._ends[partition]
        self._ends[partition] = end + 1
        self._sent[partition].append((end + 1, time.perf_counter(), batch))
        self._send(partition, batch.at(end), batch.view)

    def _on_durable(self, partition: int, end_offset: int) -> None:
        sent = self._sent[partition]
        now = time.perf_counter()
        while sent and sent[0][0] <= end_offset:
            _, start, batch = sent.popleft()
            self._taken.append(now - start)
            if not self._stopped:
                self._next(partition, batch)
        if self._stopped and not any(self._sent):
            self._drained.set()


def result_of(taken_s: list[float], elapsed_s: float) -> Result:
    """Computes the result from sorted latencies. A disk that finishes nothing in the measured time has a rate of 0."""
    if not taken_s:
        return Result(0.0, 0.0, 0.0)
    p50_ms, p99_ms = (taken_s[int(share * len(taken_s))] * 1000 for share in (0.5, 0.99))
    return Result(rate(len(taken_s), elapsed_s), p50_ms, p99_ms)


async def measure(kind: str, load: Load, directory: str, seconds: float) -> Result:
    loop = asyncio.get_running_loop()
    disk = RealDisk(loop)
    with tempfile.TemporaryDirectory(dir=directory) as inside, contextlib.closing(disk):
        target: Target
        if kind == "journal":
            target = JournalTarget(disk, RealClock(loop), inside, load.partition_count)
        else:
            target = FilesTarget(disk, inside, load.partition_count, shared=kind == "buffered")
        return await Clients(target, load).run(seconds)


def measure_serial(batch_bytes: int, directory: str, seconds: float) -> Result:
    """Measures one write and one fdatasync per request, without groups and without another thread."""
    batch = Batch(batch_bytes)
    taken: list[float] = []
    with tempfile.TemporaryDirectory(dir=directory) as inside:
        fd = os.open(f"{inside}/serial", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        start = now = time.perf_counter()
        while now - start < seconds:
            os.write(fd, batch.view)
            os.fdatasync(fd)
            taken.append(-now + (now := time.perf_counter()))
        os.close(fd)
    return result_of(sorted(taken), sum(taken))


LOADS = [
    Load(64, 1, 1024),
    Load(64, 60, 1024),
    Load(64, 1, 16 * 1024),
    Load(64, 60, 16 * 1024),
    Load(1, 1, 1024),
]
ONE = LOADS[-1]
KINDS = ["per partition", "buffered", "journal"]


def measure_all(directory: str, seconds: float) -> dict[tuple[Load, str], Result]:
    results = {(ONE, "serial"): measure_serial(ONE.batch_bytes, directory, seconds)}
    for load in LOADS:
        for kind in KINDS:
            results[load, kind] = uvloop.run(measure(kind, load, directory, seconds))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures group commit in one journal on this disk.")
    parser.add_argument("--seconds", type=float, default=1.2, help="seconds for each of the 16 measurements")
    parser.add_argument("--rounds", type=int, default=1, help="number of rounds; the best one counts")
    parser.add_argument("--directory", default=".", help="a directory on the disk to measure")
    parser.add_argument("--profile", action="store_true", help="profile the journal under its first load instead")
    options = parser.parse_args()
    if options.profile:
        profile(options.directory, options.seconds)
        return
    rounds = [measure_all(options.directory, options.seconds) for _ in range(options.rounds)]
    best = {key: max((found[key] for found in rounds), key=lambda result: result.requests_per_s) for key in rounds[0]}
    table = Table("requests/s, p50 / p99", *KINDS, "journal in MB/s", title="Acknowledged after stable storage")
    for load in LOADS:
        rate = best[load, "journal"].requests_per_s * load.batch_bytes / 1e6
        table.add_row(str(load), *(str(best[load, kind]) for kind in KINDS), f"{rate:,.0f}")
    serial = best[ONE, "serial"]
    console = Console(width=140)
    console.print(table)
    console.print(f"serial, 1 KB, one fdatasync a request: {serial}")
    times = ratio(best[LOADS[0], "journal"].requests_per_s, serial.requests_per_s)
    console.print(f"journal with 64 in flight / serial: {times_text(times, 0)} (goal: at least 20)")


def profile(directory: str, seconds: float) -> None:
    profiler = cProfile.Profile()
    with profiler:
        print(uvloop.run(measure("journal", LOADS[0], directory, seconds)))
    pstats.Stats(profiler).sort_stats("tottime").print_stats(18)


def _ignore(_partition: int, _end_offset: int) -> None: ...


def _raise(error: OSError | None) -> None:
    if error is not None:
        raise error


if __name__ == "__main__":
    main()

"""A durable write by the journal's thread against io_uring on the event loop: the table of docs/adr/0014-io-uring.md.

    python benchmarks/uring.py [--directory DIR] [--rounds 20] [--writes 60] [--beside-us 0,150]

One direct, durable write after another, as the journal makes them. "beside" is the Python work that the loop does while
a write is in flight, in steps of 50 us; the next write starts when both are done. All ways take turns in each round.
"cpu" is the loop's thread only. "process" also includes the disk's thread and io_uring's own threads, but not the
kernel's shared workers, which finish a durable write that was submitted without waiting. Latencies are the lowest tenth
and the median. Cython builds the ring at the start, and the ring needs Linux 6.1.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import pyximport
import uvloop
from rich.console import Console
from rich.table import Table

from ottla.broker.adapters.disk import best_disk_thread
from ottla.broker.adapters.files import RealFile, RealFileSystem
from ottla.ports import Completion

FILE_BYTES = 16 << 20
STEP_US = 50
SIZES = {"40 KB": 40 << 10, "72 KB": 72 << 10}


class Writer(Protocol):
    def write(self, offset: int, data: bytes, done: Completion) -> None: ...

    def close(self) -> None: ...


class BlockingWriter:
    """Writes without a thread and without an event loop: the time of the write itself."""

    def __init__(self, durable_fd: int) -> None:
        self._fd = durable_fd
        self._aligned = mmap.mmap(-1, max(SIZES.values()))

    def write(self, offset: int, data: bytes, done: Completion) -> None:
        self._aligned[: len(data)] = data
        written = os.pwrite(self._fd, memoryview(self._aligned)[: len(data)], offset)
        done(None if written == len(data) else OSError("a short write"))

    def close(self) -> None: ...


class ThreadWriter:
    def __init__(self, loop: asyncio.AbstractEventLoop, file: RealFile) -> None:
        self._thread = best_disk_thread()(loop, "benchmark")
        self._file = file

    def write(self, offset: int, data: bytes, done: Completion) -> None:
        self._thread.write(self._file, offset, [data], done)

    def close(self) -> None:
        self._thread.close()


@dataclass
class Found:
    latency_us: list[float] = field(default_factory=list)
    """The latencies of all writes of all rounds; the other lists have one figure per round."""
    each_us: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    process_us: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def cells(self) -> list[str]:
        tenth = statistics.quantiles(self.latency_us, n=10)[0]
        middles = [statistics.median(found) for found in (self.latency_us, self.each_us, self.cpu_us, self.process_us)]
        cpu_min = min(self.cpu_us)
        return [f"{tenth:.0f}", *(f"{middle:.0f}" for middle in middles), f"{cpu_min:.0f}", f"{max(self.waits):.1f}"]


class Turn:
    """A number of writes, one after another."""

    def __init__(self, loop: asyncio.AbstractEventLoop, writer: Writer, data: bytes, writes: int, beside_us: int):
        self._loop = loop
        self._writer = writer
        self._data = data
        self._left = writes
        self._beside_us = beside_us
        self._offset = 0
        self._unfinished = 0
        self.over: asyncio.Future[None] = loop.create_future()
        self.latency_us: list[float] = []

    def start(self) -> None:
        if not self._left:
            self.over.set_result(None)
            return
        self._left -= 1
        self._unfinished = 2 if self._beside_us else 1
        if self._beside_us:
            self._loop.call_soon(self._work, self._beside_us)
        self._start_s = time.perf_counter()
        offset, self._offset = self._offset, (self._offset + len(self._data)) % (FILE_BYTES // 2) // 4096 * 4096
        self._writer.write(offset, self._data, self._on_written)

    def _work(self, left_us: int) -> None:
        until_s = time.perf_counter() + min(left_us, STEP_US) / 1e6
        while time.perf_counter() < until_s:
            pass
        if left_us > STEP_US:
            self._loop.call_soon(self._work, left_us - STEP_US)
        else:
            self._finish_one()

    def _on_written(self, error: OSError | None) -> None:
        if error is not None:
            self.over.set_exception(error)
            return
        self.latency_us.append((time.perf_counter() - self._start_s) * 1e6)
        self._finish_one()

    def _finish_one(self) -> None:
        self._unfinished -= 1
        if not self._unfinished:
            self._loop.call_soon(self.start)


WriterType = Callable[[asyncio.AbstractEventLoop], Writer]


async def measure(writer_type: WriterType, data: bytes, writes: int, beside_us: int, found: Found) -> None:
    loop = asyncio.get_running_loop()
    writer = writer_type(loop)
    turn = Turn(loop, writer, data, writes, beside_us)
    before = time.perf_counter(), time.thread_time(), time.process_time()
    waits = -resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    turn.start()
    await turn.over
    after = time.perf_counter(), time.thread_time(), time.process_time()
    waits += resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    writer.close()
    found.latency_us += turn.latency_us
    found.waits.append(waits / writes)
    for figures, start, end in zip((found.each_us, found.cpu_us, found.process_us), before, after, strict=True):
        figures.append((end - start) / writes * 1e6)


def writer_types(file: RealFile, direct_fd: int) -> dict[str, WriterType]:
    pyximport.install(build_dir=os.path.join(tempfile.gettempdir(), "ottla-pyximport"))
    import _uring as ring

    def on_ring(fd: int, setup_flags: int, write_flags: int) -> WriterType:
        return lambda loop: ring.RingQueue(loop, fd, max(SIZES.values()), setup_flags, write_flags)

    durable_fd = file.hold()
    return {
        "blocking": lambda loop: BlockingWriter(durable_fd),
        "thread": lambda loop: ThreadWriter(loop, file),
        "io_uring": on_ring(durable_fd, ring.COOPERATIVE, 0),
        "io_uring, deferred": on_ring(durable_fd, ring.DEFERRED, 0),
        "io_uring, write then sync": on_ring(direct_fd, ring.COOPERATIVE, ring.THEN_SYNC),
        "io_uring, its worker": on_ring(durable_fd, ring.COOPERATIVE, ring.BY_A_WORKER),
        "io_uring, polling thread": on_ring(durable_fd, ring.POLLED, 0),
    }


def report(title: str, found: dict[str, Found]) -> None:
    table = Table("us", "p10", "p50", "each", "cpu", "process", "cpu, best round", "waits", title=title)
    for name, figures in found.items():
        table.add_row(name, *figures.cells())
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--directory", default=None, help="where to write (default: the temporary directory)")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--writes", type=int, default=60, help="number of writes of each method in each round")
    parser.add_argument("--beside-us", default="0,150", help="other work of the loop during a write, in microseconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        path = os.path.join(directory, "journal")
        with open(path, "wb") as plain:
            plain.write(os.urandom(FILE_BYTES))
            os.fsync(plain.fileno())
        file = RealFileSystem().open_durable(path)
        ways = writer_types(file, os.open(path, os.O_RDWR | os.O_DIRECT))
        for beside_us in map(int, options.beside_us.split(",")):
            for size, size_bytes in SIZES.items():
                found = {name: Found() for name in ways}
                data = os.urandom(size_bytes)
                for _ in range(options.rounds):
                    for name, way in ways.items():
                        uvloop.run(measure(way, data, options.writes, beside_us, found[name]))
                report(f"{size}, {beside_us} us of Python beside each write", found)


if __name__ == "__main__":
    main()

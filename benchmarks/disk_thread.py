"""The disk thread beside a busy Python thread: why it finishes without the GIL.

    python benchmarks/disk_thread.py [--directory DIR] [--seconds 3]

One write is in flight at a time. "alone" is an idle process. "performed" is the time until the thread has finished
(measured while this thread does nothing but poll), and "delivered" the time until the completion ran on the event loop,
which itself needs the GIL.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from ottla.broker.adapters._disk_py import DiskThread as DiskThreadInPython
from ottla.broker.adapters.disk import DiskThread, DiskThreadType, best_disk_thread
from ottla.broker.adapters.files import RealFile, RealFileSystem
from ottla.ports import ReadOnlyBuffer

WRITE_BYTES = 4096
FILE_BYTES = 8 << 20


@contextmanager
def busy_python_thread() -> Iterator[None]:
    stop = threading.Event()

    def spin() -> None:
        total = 0
        while not stop.is_set():
            for number in range(1000):
                total += number * number

    thread = threading.Thread(target=spin)
    thread.start()
    yield
    stop.set()
    thread.join()


def resolve(future: asyncio.Future[None], error: OSError | None) -> None:
    future.set_result(None)


async def delivered_us(thread: DiskThread, file: RealFile, seconds: float) -> list[float]:
    """Returns the times from the request to its completion on the event loop."""
    loop = asyncio.get_running_loop()
    block: list[ReadOnlyBuffer] = [os.urandom(WRITE_BYTES)]
    taken: list[float] = []
    offset = 0
    until = time.perf_counter() + seconds
    while (start := time.perf_counter()) < until:
        future: asyncio.Future[None] = loop.create_future()
        thread.write(file, offset, block, partial(resolve, future))
        await future
        taken.append((time.perf_counter() - start) * 1e6)
        offset = (offset + WRITE_BYTES) % FILE_BYTES
    return taken


async def performed_us(thread: DiskThread, file: RealFile, seconds: float) -> list[float]:
    """Returns the times from the request until the thread has finished, while this thread is busy in Python."""
    block: list[ReadOnlyBuffer] = [os.urandom(WRITE_BYTES)]
    taken: list[float] = []
    offset = 0
    until = time.perf_counter() + seconds
    while (start := time.perf_counter()) < until:
        target = thread.finished_count() + 1
        thread.write(file, offset, block, lambda error: None)
        while thread.finished_count() < target:
            pass
        taken.append((time.perf_counter() - start) * 1e6)
        offset = (offset + WRITE_BYTES) % FILE_BYTES
        await asyncio.sleep(0)
    return taken


def report(thread_name: str, case: str, taken: list[float]) -> None:
    taken.sort()
    row = {
        "benchmark": "disk_thread",
        "thread": thread_name,
        "case": case,
        "writes": len(taken),
        "p50_us": round(taken[len(taken) // 2]),
        "p99_us": round(taken[len(taken) * 99 // 100]),
    }
    print(json.dumps(row))


async def measure(thread_name: str, thread_type: DiskThreadType, file: RealFile, seconds: float) -> None:
    thread = thread_type(asyncio.get_running_loop(), "benchmark")
    report(thread_name, "alone, delivered", await delivered_us(thread, file, seconds))
    report(thread_name, "this thread busy, performed", await performed_us(thread, file, seconds))
    with busy_python_thread():
        report(thread_name, "another thread busy, delivered", await delivered_us(thread, file, seconds))
    thread.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--directory", default=None, help="where to write (default: the temporary directory)")
    parser.add_argument("--seconds", type=float, default=3.0, help="per line")
    options = parser.parse_args()
    if best_disk_thread() is DiskThreadInPython:
        sys.exit("the extension is not built: run 'make setup'")
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        path = os.path.join(directory, "journal")
        with open(path, "wb") as plain:
            plain.write(os.urandom(FILE_BYTES))
            os.fsync(plain.fileno())
        file = RealFileSystem().open_durable(path)
        for name, thread_type in (("python", DiskThreadInPython), ("compiled", best_disk_thread())):
            asyncio.run(measure(name, thread_type, file, options.seconds))
        file.close()


if __name__ == "__main__":
    main()

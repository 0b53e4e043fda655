"""The cost of reading a segment that no cache holds: the figures behind "from disk" in docs/reference/benchmarks.md.

    python benchmarks/cold_reads.py [--directory DIR] [--mb 512] [--rounds 3] [--pause 5]

A file is written and synced, and its pages are dropped. After a pause it is read in pieces of 1 MB in several ways:
through the page cache; again while the page cache holds it; past the page cache (O_DIRECT) into memory that has been
used before; and through a socket with sendfile, as Apache Kafka does, where the receiver is the first to touch the
bytes. CPU seconds per GB are those of the reading thread, and of the receiving thread.

The pause is for virtual machines. A kernel with free page reporting returns memory that has been free for a while to
the host, and the first touch of each such page is then an exit to the host.
"""

from __future__ import annotations

import argparse
import mmap
import os
import resource
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ottla.bench.quotients import rate

PIECE_BYTES = 1 << 20


def cpu_s(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def give_up_pages(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_into(fd: int, size: int, buffer: mmap.mmap) -> None:
    for offset in range(0, size, PIECE_BYTES):
        os.preadv(fd, [buffer], offset)


def buffered(path: Path, size: int, buffer: mmap.mmap) -> tuple[float, float]:
    fd = os.open(path, os.O_RDONLY)
    try:
        return measured(lambda: read_into(fd, size, buffer)), 0.0
    finally:
        os.close(fd)


def direct(path: Path, size: int, buffer: mmap.mmap) -> tuple[float, float]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return measured(lambda: read_into(fd, size, buffer)), 0.0
    finally:
        os.close(fd)


def sent(path: Path, size: int, buffer: mmap.mmap) -> tuple[float, float]:
    """Returns the CPU time of the sending and of the receiving thread, each by its own clock."""
    fd = os.open(path, os.O_RDONLY)
    ours, theirs = socket.socketpair()
    received: list[float] = []

    def receive() -> None:
        begun_s, left, view = time.thread_time(), size, memoryview(bytearray(PIECE_BYTES))
        while left:
            left -= theirs.recv_into(view)
        received.append(time.thread_time() - begun_s)

    reader = threading.Thread(target=receive)
    reader.start()
    try:
        begun_s, offset = time.thread_time(), 0
        while offset < size:
            offset += os.sendfile(ours.fileno(), fd, offset, PIECE_BYTES)
        sender_s = time.thread_time() - begun_s
        reader.join()
        return sender_s, received[0]
    finally:
        for each in (ours, theirs):
            each.close()
        os.close(fd)


def measured(work: Callable[[], None]) -> float:
    begun_s = cpu_s(resource.RUSAGE_THREAD)
    work()
    return cpu_s(resource.RUSAGE_THREAD) - begun_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path())
    parser.add_argument("--mb", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pause", type=float, default=5.0, help="seconds")
    wanted = parser.parse_args()
    size = wanted.mb << 20
    ways: dict[str, tuple[Callable[[Path, int, mmap.mmap], tuple[float, float]], bool]] = {
        "page cache, nothing in it": (buffered, True),
        "page cache, all in it": (buffered, False),
        "past the page cache": (direct, True),
        "sendfile, nothing in it": (sent, True),
        "sendfile, all in it": (sent, False),
    }
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    buffer = mmap.mmap(-1, PIECE_BYTES)
    buffer.write(bytes(PIECE_BYTES))
    with tempfile.TemporaryDirectory(dir=wanted.directory) as directory:
        path = Path(directory, "segment")
        with path.open("wb") as file:
            for _ in range(wanted.mb):
                file.write(os.urandom(PIECE_BYTES))
        for _ in range(wanted.rounds):
            for name, (way, is_cold) in ways.items():
                if is_cold:
                    give_up_pages(path)
                    time.sleep(wanted.pause)
                begun_s = time.monotonic()
                reading_s, receiving_s = way(path, size, buffer)
                found[name].append((reading_s, receiving_s, time.monotonic() - begun_s))
    table = Table(title=f"{wanted.mb} MB in pieces of 1 MB, medians of {wanted.rounds} rounds")
    table.add_column("")
    for column in ("CPU s/GB, reader", "CPU s/GB, receiver", "MB/s"):
        table.add_column(column, justify="right")
    for name, figures in found.items():
        reading_s, receiving_s, took_s = (statistics.median(each) for each in zip(*figures, strict=True))
        gb = size / 1e9
        table.add_row(name, f"{reading_s / gb:.2f}", f"{receiving_s / gb:.2f}", f"{rate(size / 1e6, took_s):,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()

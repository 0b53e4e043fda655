"""The cost of a write to the page cache by the state of the file: growing, allocated, written before.

python benchmarks/segment_writes.py [directory]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

from rich.console import Console
from rich.table import Table

CHUNK = os.urandom(128 * 1024)
CHUNKS = 4000
ROUNDS = 3


def cpu_seconds_per_gb(fd: int) -> float:
    began = time.process_time()
    for number in range(CHUNKS):
        os.pwrite(fd, CHUNK, number * len(CHUNK))
    return (time.process_time() - began) / (CHUNKS * len(CHUNK) / 1e9)


def measure(directory: str) -> tuple[float, float, float]:
    path = os.path.join(directory, "segment")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    growing = cpu_seconds_per_gb(fd)
    written_before = cpu_seconds_per_gb(fd)
    os.close(fd)
    os.unlink(path)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.posix_fallocate(fd, 0, CHUNKS * len(CHUNK))
    allocated = cpu_seconds_per_gb(fd)
    os.close(fd)
    os.unlink(path)
    return growing, allocated, written_before


def main() -> None:
    table = Table("round", "growing", "allocated", "written before", title="CPU seconds per GB of 128 KB writes")
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as directory:
        for number in range(ROUNDS):
            table.add_row(str(number + 1), *(f"{cost:.2f}" for cost in measure(directory)))
    Console().print(table)


if __name__ == "__main__":
    main()

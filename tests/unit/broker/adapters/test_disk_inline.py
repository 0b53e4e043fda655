"""Small writes to the page cache are made inline; large ones and those behind a slow one go to the thread."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from ottla.broker.adapters._disk_py import write_all as write_all_in_python
from ottla.broker.adapters.disk import INLINE_BYTES_MAX, SLOW_WRITE_S, InlineWrites, RealDiskQueue
from ottla.broker.adapters.files import RealFile, RealFileSystem, WriteAll, best_write_all
from ottla.broker.adapters.kernel import is_memory_file_system


class Bench:
    def __init__(self, directory: Path) -> None:
        self.queue = RealDiskQueue(asyncio.get_running_loop(), "test", inline=InlineWrites())
        self.file = RealFileSystem().open(str(directory / "file"), create=True)
        self.ended: list[OSError | None] = []
        self._heard = asyncio.Event()

    def write(self, offset: int, data: bytes) -> None:
        self.queue.write(self.file, offset, [data], self._end)

    def _end(self, error: OSError | None) -> None:
        self.ended.append(error)
        self._heard.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.ended) < count:
                self._heard.clear()
                await self._heard.wait()


async def test_a_small_write_is_done_when_the_call_returns(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write(0, b"abc")
    assert bench.ended == [None]
    assert (tmp_path / "file").read_bytes() == b"abc"
    bench.queue.close()


async def test_a_large_write_takes_the_thread_and_a_small_one_stays_behind_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write(0, bytes(INLINE_BYTES_MAX + 1))
    bench.write(0, b"later")
    assert bench.ended == [], "the small write must not overtake the large one"
    await bench.wait_for(2)
    assert (tmp_path / "file").read_bytes()[:5] == b"later"
    bench.queue.close()


async def test_after_a_write_that_waited_long_the_thread_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    monkeypatch.setattr(RealFile, "write_and_time", lambda *_: 2 * SLOW_WRITE_S)
    bench.write(0, b"slow")
    assert bench.ended == [None]
    monkeypatch.undo()
    bench.write(4, b"next")
    assert bench.ended == [None], "not on the loop's thread now"
    await bench.wait_for(2)
    bench.queue.close()


@pytest.mark.parametrize("write_all", [write_all_in_python, best_write_all()])
def test_only_waiting_for_the_disk_counts_as_slow(tmp_path: Path, write_all: WriteAll) -> None:
    """Time in which other threads had the processor does not count."""
    if is_memory_file_system(str(tmp_path)):
        pytest.skip("nothing waits for a disk here")
    data = [bytes(64 * 1024)]
    for flags, waits in ((os.O_DSYNC, True), (0, False)):
        fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | flags)
        try:
            times_s = [write_all(fd, 0, data) for _ in range(20)]
        finally:
            os.close(fd)
        assert (min(times_s) > 0.0) is waits, times_s


async def test_a_failure_is_delivered(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.file.close()
    bench.write(0, b"abc")
    assert isinstance(bench.ended[0], OSError)
    bench.queue.close()

"""The segment writes of one log, by themselves: when they begin, how far they go, and how they fail."""

from __future__ import annotations

import errno

import pytest

from ottla.broker.storage.log_resources import LAZY_WRITE_MS, LogResources, MemoryBudget
from ottla.broker.storage.segment import Segment
from ottla.broker.storage.segment_writer import EARLY_WRITE_BYTES, RETRY_FULL_DISK_MS, SegmentWriter
from ottla.broker.storage.tail_cache import TailCache
from ottla.ports import Completion, DataFile
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk

BATCH = memoryview(bytes(100))


class Bench:
    def __init__(self, *, is_journaled: bool) -> None:
        self.clock = SimClock()
        self.disk = SimDisk(self.clock, seed=1)
        self.reports: list[str] = []
        self.shared = LogResources(
            self.disk, self.clock, TailCache(1 << 20), MemoryBudget(1 << 20), report=self.reports.append
        )
        self.segment = Segment(self.disk.files, "/log", 0, 4096, 0)
        self.seen: list[str | int] = []
        self.writer = SegmentWriter(self.shared, "/log", self, 0, is_journaled=is_journaled)
        self._end_offset = 0

    def on_written(self, end_offset: int) -> None:
        self.seen.append(end_offset)

    def on_acknowledged(self) -> None:
        self.seen.append("acknowledged")

    def fail(self, error: OSError) -> None:
        self.seen.append(f"failed: {error.errno}")

    def append(self, batch: memoryview = BATCH) -> None:
        position = self.segment.appended_end
        self.segment.appended_end += len(batch)
        self._end_offset += 1
        self.writer.pending.add(self.segment, position, self._end_offset, batch)
        self.writer.schedule()

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch, *errors: int) -> None:
        """Lets the next writes fail."""
        left = list(errors)
        queue = self.disk.segment_queue
        write = queue.write

        def fail_or_write(file: DataFile, offset: int, data: list[memoryview], done: Completion) -> None:
            if left:
                done(OSError(left.pop(0), "injected"))
            else:
                write(file, offset, data, done)

        monkeypatch.setattr(queue, "write", fail_or_write)


def test_a_cache_log_writes_at_the_end_of_the_turn() -> None:
    bench = Bench(is_journaled=False)
    bench.append()
    bench.append()
    assert bench.disk.segment_queue.pending() == 0
    bench.clock.advance(10)
    assert bench.seen == [2, "acknowledged"]
    assert bench.writer.written_end == 2
    assert bench.segment.written_end == 200


def test_a_cache_log_writes_much_at_once() -> None:
    bench = Bench(is_journaled=False)
    bench.append(memoryview(bytes(EARLY_WRITE_BYTES)))
    assert bench.disk.segment_queue.pending() == 1


def test_a_disk_log_writes_lazily_and_only_what_is_journaled() -> None:
    bench = Bench(is_journaled=True)
    bench.append()
    bench.append()
    bench.clock.advance(10 * LAZY_WRITE_MS)
    assert bench.writer.written_end == 0
    bench.writer.on_journaled(1)
    bench.clock.advance(10 * LAZY_WRITE_MS)
    assert bench.writer.written_end == 1
    assert bench.seen == [], "the journal acknowledges"


def test_a_callback_waits_until_everything_is_written() -> None:
    bench = Bench(is_journaled=True)
    bench.append()
    bench.writer.when_written(1, lambda: bench.seen.append("written"))
    bench.writer.on_journaled(1)
    assert bench.seen == []
    bench.clock.advance(10)
    assert bench.seen == ["written"]
    bench.writer.when_written(1, lambda: bench.seen.append("at once"))
    assert bench.seen == ["written", "at once"]


def test_a_stopped_writer_writes_nothing_and_keeps_nobody_waiting() -> None:
    bench = Bench(is_journaled=False)
    bench.append()
    bench.writer.when_written(5, lambda: bench.seen.append("over"))
    bench.writer.stop()
    bench.writer.run_waits()
    assert bench.seen == ["over"]
    bench.append()
    bench.clock.advance(10)
    assert bench.segment.written_end <= 100, "the write that was in flight"


def test_a_frozen_writer_goes_on_above_what_was_rewritten() -> None:
    bench = Bench(is_journaled=True)
    for _ in range(3):
        bench.append()
    bench.writer.freeze()
    bench.writer.on_journaled(3)
    bench.writer.when_written(2, lambda: bench.seen.append("written"))
    bench.clock.advance(10 * LAZY_WRITE_MS)
    assert (bench.writer.written_end, bench.seen) == (0, [])
    bench.writer.thaw(3)
    assert (bench.writer.written_end, bench.seen) == (3, ["written"])
    assert not bench.writer.pending


def test_a_full_disk_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(is_journaled=False)
    bench.fail_writes(monkeypatch, errno.ENOSPC)
    bench.append()
    bench.clock.advance(10)
    assert (bench.writer.written_end, bench.seen) == (0, [])
    assert "no space left" in bench.reports[0]
    bench.clock.advance(RETRY_FULL_DISK_MS)
    assert bench.writer.written_end == 1


@pytest.mark.parametrize("is_journaled", [True, False])
def test_any_other_error_is_repaired_from_the_journal_or_fails_the_log(
    monkeypatch: pytest.MonkeyPatch, is_journaled: bool
) -> None:
    """A failed write is never repeated on the same file (safety: failed-sync)."""
    bench = Bench(is_journaled=is_journaled)
    bench.writer.repair = lambda error: bench.seen.append(f"repaired: {error.errno}")
    bench.fail_writes(monkeypatch, errno.EIO)
    bench.append()
    bench.writer.on_journaled(1)
    bench.clock.advance(10 * LAZY_WRITE_MS)
    assert bench.seen[0] == (f"repaired: {errno.EIO}" if is_journaled else f"failed: {errno.EIO}")

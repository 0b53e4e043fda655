"""Which segments retention deletes, when, and what survives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead
from ottla.broker.storage.file_log import SEALED_FLUSH_MS
from ottla.broker.storage.retention import apply_retention, expired_segments
from ottla.broker.storage.segment import INDEX_SUFFIX, segment_name, unsynced_since_ms
from ottla.broker.storage.startup.checkpoint import decode_checkpoint
from ottla.machines.producers import Duplicate, OutOfOrder
from ottla.ports import DiskQueue
from ottla.protocol.records.batch import read_header
from ottla.sim.disk import Keep
from tests.support.sim_logs import LogBench, config_of, key_of, split

CLASSES = ["disk", "cache"]
T = TypeVar("T")


def bench_of(durability: str, **settings: str) -> LogBench:
    return LogBench(durability, settings=settings)


def files(bench: LogBench) -> list[int]:
    return [int(name.removesuffix(".log")) for name in bench.names() if name.endswith(".log")]


@pytest.mark.parametrize("durability", CLASSES)
def test_a_retention_of_seconds(durability: str) -> None:
    """Segments are deleted, also the active one; the start moves; the log continues."""
    bench = bench_of(durability, retention_ms="3000")
    bench.fill(batches=60)
    bench.settle(2000)
    young = bench.fill(batches=30)
    bench.retain()
    assert bench.log().start_offset == 0, "nothing is older than three seconds"
    bench.settle(1500)
    bench.retain()
    log = bench.log()
    # A segment is deleted as a whole when its youngest record is too old.
    assert 0 < log.start_offset <= 60
    assert bench.read_all()[-30:] == young
    bench.settle(4000)
    bench.retain()
    assert (log.start_offset, log.end_offset) == (90, 90)
    assert bench.read_all() == []
    assert files(bench) in ([], [90])
    more = bench.fill(batches=3)
    bench.restart("all")
    assert (bench.log().start_offset, bench.log().end_offset) == (90, 93)
    assert bench.read_all() == more


@pytest.mark.parametrize("durability", CLASSES)
def test_the_producers_outlive_their_segments(durability: str) -> None:
    """A retry after its segment was deleted is still a duplicate, also after a restart (safety: duplicates)."""
    bench = bench_of(durability, retention_ms="1000")
    for sequence in range(3):
        bench.append(producer=(7, 0, sequence))
    bench.settle(2000)
    bench.retain()
    assert bench.log().start_offset == 3
    for _ in range(2):
        verdict = bench.log().producers.judge(7, 0, 2, 2)
        assert isinstance(verdict, Duplicate)
        assert verdict.batch.base_offset == 2
        assert bench.log().producers.judge(7, 0, 9, 9) == OutOfOrder(3)
        bench.restart("none")


def test_the_producers_outlive_a_crash_between_state_and_checkpoint() -> None:
    """The state file is ahead of the checkpoint: its state from below still holds."""
    bench = bench_of("disk", retention_ms="1000")
    bench.append(producer=(7, 0, 0))
    bench.settle(2000)
    bench.retain()
    assert bench.log().start_offset == 1
    for sequence in range(8):
        bench.append(producer=(8, 0, sequence))
    bench.append(producer=(9, 4, 0))
    bench.settle()
    bench.disk.faults.fail_sync(path="/data/checkpoint", count=None)
    bench.flusher.run(everything=True)
    bench.settle()
    bench.restart("none")
    producers = bench.log().producers
    assert isinstance(producers.judge(7, 0, 0, 0), Duplicate)
    assert isinstance(producers.judge(8, 0, 3, 3), Duplicate)
    assert producers.judge(8, 0, 2, 2) == OutOfOrder(8), "only the last five are remembered"
    assert isinstance(producers.judge(9, 4, 0, 0), Duplicate)


@pytest.mark.parametrize("durability", CLASSES)
def test_the_files_go_after_the_checkpoint_has_the_new_start(durability: str) -> None:
    """A crash in between must find files that are known to be below the start."""
    bench = bench_of(durability, retention_ms="1000")
    bench.fill(batches=60)
    bench.flush()
    bench.settle(2000)
    bench.disk.faults.fail_sync(path="/data/checkpoint", count=None)
    for _ in range(3):
        apply_retention(bench.log(), bench.flusher, bench.clock.now_ms())
        bench.settle()
    before = files(bench)
    assert before[0] == 0
    bench.disk.faults.clear()
    bench.retain()
    assert files(bench)[:1] != [0]
    checkpoint = decode_checkpoint(bench.disk.files.read_file("/data/checkpoint"))
    assert checkpoint.points[key_of(0)].start_offset == bench.log().start_offset == 60


@pytest.mark.parametrize("keep", ["none", "some", "all"])
@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_a_crash_at_any_step_of_a_removal(keep: str, steps: int) -> None:
    bench = bench_of("disk", retention_ms="1000")
    batches = bench.fill(batches=60)
    bench.flush()
    bench.settle(1100)
    batches += bench.fill(batches=10)
    apply_retention(bench.log(), bench.flusher, bench.clock.now_ms())
    for _ in range(steps):
        bench.clock.run_one()
        apply_retention(bench.log(), bench.flusher, bench.clock.now_ms())
    bench.crash(keep, seed=steps)  # type: ignore[arg-type]  # a literal
    bench.start()
    log = bench.log()
    assert log.end_offset == 70
    assert log.start_offset <= 60
    assert bench.read_all() == batches[log.start_offset :]
    assert not log.damages


# -- deletion before a sync ------------------------------------------------------------------------------------------


def passed_and_unsynced() -> tuple[LogBench, list[bytes]]:
    """Returns a `cache` log whose first segments expired before they were synced, and its remaining batches."""
    bench = bench_of("cache", retention_ms="1000")
    bench.append(producer=(7, 0, 0))
    bench.fill(batches=60)
    bench.settle(1500)
    kept = bench.fill(batches=60)
    bench.retain()
    assert 0 < bench.log().start_offset <= 61
    return bench, [batch for batch in kept if read_header(batch).base_offset >= bench.log().start_offset]


def test_what_expires_in_its_time_to_be_synced_is_never_synced() -> None:
    bench, kept = passed_and_unsynced()
    log = bench.log()
    assert [segment.synced_end for segment in log.segments] == [0] * len(log.segments)
    assert files(bench)[0] == log.segments[0].base_offset > 0, "the files are gone"
    assert bench.read_all()[-len(kept) :] == kept
    assert not log.wants_flush(bench.clock.now_ms())
    bench.settle(SEALED_FLUSH_MS)
    assert log.wants_flush(bench.clock.now_ms()), "full segments that stay are synced"
    bench.flush()
    bench.restart("none")
    assert bench.read_all()[-len(kept) :] == kept


@pytest.mark.parametrize("keep", ["none", "some", "all"])
@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_after_a_start_that_moved_without_a_sync(keep: Keep, seed: int) -> None:
    """The start stays where it is, the readable records are a prefix of those before, and nothing that expired looks
    like damage."""
    bench, _ = passed_and_unsynced()
    log = bench.log()
    start_offset, everything = log.start_offset, bench.read_all()
    bench.crash(keep, seed=seed)
    bench.start()
    log = bench.log()
    assert log.start_offset == start_offset
    found = bench.read_all()
    assert found == everything[: len(found)]
    assert found == everything or keep != "all"
    assert not log.damages
    assert isinstance(log.producers.judge(7, 0, 0, 0), Duplicate), "its segment is gone, its state is not"
    more = bench.fill(batches=5)
    assert bench.read_all() == found + more


def test_a_power_cut_that_leaves_only_what_had_gone() -> None:
    """The names of all remaining files are lost; the last file is below the log start, with arbitrary content."""
    bench, _ = passed_and_unsynced()
    start_offset = bench.log().start_offset
    point = decode_checkpoint(bench.disk.files.read_file("/data/checkpoint")).points[key_of(0)]
    assert point.segment_base < start_offset
    bench.crash("all")
    for name in bench.names():
        if name.endswith((".log", INDEX_SUFFIX)):
            bench.disk.files.remove(bench.path(name))
    bench.disk.files.replace_file(bench.path(segment_name(point.segment_base)), b"\x01" * point.position)
    bench.start()
    log = bench.log()
    assert (log.start_offset, log.end_offset) == (start_offset, start_offset)
    assert not log.damages
    assert bench.fill(batches=5) == bench.read_all()


@pytest.mark.parametrize("keep", ["none", "all"])
def test_the_producers_outlive_a_flush_that_comes_after_a_start_and_not_to_its_end(keep: Keep) -> None:
    """The state is ahead of the checkpoint, which has a moved start and is not that of a reset log."""
    bench, _ = passed_and_unsynced()
    bench.disk.faults.fail_sync(path="/data/checkpoint", count=None)
    bench.flusher.run(logs=[bench.log()])
    bench.settle()
    bench.restart(keep)
    assert isinstance(bench.log().producers.judge(7, 0, 0, 0), Duplicate)


def test_a_start_inside_a_segment_is_synced_with_it() -> None:
    """Otherwise a power cut could leave a log that ends before its start."""
    bench = bench_of("cache")
    bench.fill(batches=60)
    start_offset = bench.log().active.base_offset + 1
    bench.log().advance_start(start_offset, lambda _: None)
    bench.retain()
    assert files(bench) == [start_offset - 1]
    bench.restart("none")
    assert (bench.log().start_offset, bench.log().end_offset) == (start_offset, 60)


def test_a_start_that_moves_is_no_flush() -> None:
    """The topic's flush.ms counts from the last real flush."""
    bench = bench_of("cache", retention_ms="1000", flush_ms="7000")
    for _ in range(9):
        bench.fill(batches=60)
        bench.settle(600)
        bench.retain()
    assert bench.log().start_offset > 100
    assert not bench.log().wants_flush(bench.clock.now_ms())
    bench.settle(400)
    assert unsynced_since_ms(bench.log().segments, bench.clock.now_ms()) > bench.clock.now_ms() - SEALED_FLUSH_MS
    assert bench.log().wants_flush(bench.clock.now_ms())


def test_a_producer_that_is_known_only_as_of_the_end_makes_it_a_flush() -> None:
    """Its last batches are all above the new start; its earlier state would be forgotten."""
    bench = bench_of("cache", retention_ms="1000")
    bench.fill(batches=40)
    bench.settle(1500)
    for sequence in range(40):
        bench.append(producer=(7, 0, sequence))
    bench.settle()
    bench.retain()
    log = bench.log()
    assert log.start_offset > 0
    assert log.active.synced_end == log.active.written_end > 0
    bench.restart("none")
    assert isinstance(bench.log().producers.judge(7, 0, 39, 39), Duplicate)


def test_retention_by_size_keeps_at_least_that_much() -> None:
    bench = bench_of("disk", retention_bytes="10000")
    batches = bench.fill(batches=200)
    bench.retain()
    log = bench.log()
    assert 10000 <= log.size_bytes < 10000 + 4096 * 2
    assert bench.read_all() == batches[log.start_offset :]


def test_retention_by_size_never_takes_the_active_segment() -> None:
    bench = bench_of("disk", retention_bytes="0")
    batches = bench.fill(batches=10)
    bench.retain()
    assert bench.read_all() == batches


def test_a_start_that_was_moved_removes_whole_segments_below_it() -> None:
    bench = bench_of("disk")
    batches = bench.fill(batches=80)
    first, second = (segment.base_offset for segment in bench.log().segments[1:3])
    bench.log().advance_start(second + 2, lambda _: None)
    bench.settle()
    bench.retain()
    assert files(bench)[0] == second > first
    assert bench.log().start_offset == second + 2
    assert bench.read(second + 2) == [batches[second + 2]]
    bench.restart("none")
    assert bench.log().start_offset == second + 2
    assert bench.read_all() == batches[second + 2 :]


def test_what_is_not_acknowledged_does_not_expire() -> None:
    bench = bench_of("disk", retention_ms="1000")
    bench.disk.stall("journal")
    bench.append()
    bench.settle(5000)
    assert expired_segments(bench.log(), bench.clock.now_ms()) == []
    bench.retain()
    assert bench.log().start_offset == 0


def test_a_compacted_topic_does_not_expire() -> None:
    bench = LogBench("disk", settings={"retention_ms": "1000", "cleanup_policy": "compact"})
    bench.fill(batches=60)
    bench.settle(60_000)
    bench.retain()
    assert bench.log().start_offset == 0


def test_unlimited_retention() -> None:
    bench = bench_of("disk", retention_ms="-1", retention_bytes="-1")
    bench.fill(batches=60)
    bench.settle(10_000_000_000)
    bench.retain()
    assert bench.log().start_offset == 0


@pytest.mark.parametrize("durability", CLASSES)
def test_records_without_a_timestamp_live_as_long_as_others(durability: str) -> None:
    """-1 means that the producer gave none, not that the record is from 1970."""
    bench = bench_of(durability, retention_ms="60000")
    batches = bench.fill(batches=30, timestamp_ms=-1)
    assert read_header(batches[0]).max_timestamp == -1
    bench.retain()
    assert bench.read_all() == batches
    bench.settle(70_000)
    bench.retain()
    assert bench.read_all() == []


def test_a_new_retention_holds_from_the_next_look() -> None:
    bench = bench_of("disk", retention_ms="-1")
    bench.fill(batches=60)
    bench.settle(10_000)
    bench.log().config = config_of(durability="disk", retention_ms="5000")
    bench.retain()
    assert bench.log().start_offset == 60


def test_a_failed_log_keeps_its_files() -> None:
    bench = bench_of("cache", retention_ms="1000")
    batches = bench.fill(batches=60)
    bench.log().fail(OSError(5, "broken"))
    bench.settle(5000)
    bench.retain()
    assert bench.read_all() == batches


class Held:
    """A queue that writes as usual and holds back its calls."""

    def __init__(self, queue: DiskQueue) -> None:
        self._queue = queue
        self._calls: list[Callable[[], None]] = []
        self.write = queue.write
        self.sync = queue.sync
        self.pending = queue.pending
        self.close = queue.close

    def call(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self._calls.append(lambda: self._queue.call(job, done))

    def let_go(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            call()


# -- recycled files --------------------------------------------------------------------------------------------------


def recycled_files(bench: LogBench) -> list[str]:
    return bench.disk.files.list_dir("/data/recycled")


def expire_everything(bench: LogBench, number: int = 0) -> None:
    bench.settle(2000)
    bench.retain(number)


@pytest.mark.parametrize("durability", CLASSES)
def test_the_file_of_an_expired_segment_becomes_a_new_one(durability: str) -> None:
    """The old content of the file is never visible, whatever a crash leaves."""
    bench = LogBench(durability, settings={"retention_ms": "1000"})
    bench.fill(batches=100)
    expire_everything(bench)
    waiting = recycled_files(bench)
    assert waiting
    batches = bench.fill(batches=30)
    assert len(recycled_files(bench)) < len(waiting)
    active = bench.log().active
    assert bench.disk.files.open(active.path).size() > active.appended_end, "the old bytes are still there"
    assert bench.read_all() == batches
    keeps: tuple[Keep, ...] = ("all", "some", "none") if durability == "disk" else ("all", "all")
    for keep in keeps:
        bench.restart(keep)
        assert bench.read_all() == batches
        assert not bench.log().damages
        batches += bench.fill(batches=5)
    assert recycled_files(bench) == []


@pytest.mark.parametrize("durability", CLASSES)
def test_no_log_takes_the_files_of_another(durability: str) -> None:
    """Another log's batches could seem to continue it, since they may have any offset; its own old ones cannot."""
    bench = LogBench(durability, durability, settings={"retention_ms": "1000"})
    bench.fill(0, batches=100)
    bench.fill(1, batches=100)
    expire_everything(bench, 0)
    waiting = recycled_files(bench)
    assert waiting
    bench.fill(1, batches=100)
    assert recycled_files(bench) == waiting


@pytest.mark.parametrize("durability", CLASSES)
def test_old_bytes_are_told_from_new_ones_even_without_a_checkpoint(durability: str) -> None:
    bench = LogBench(durability, settings={"retention_ms": "1000"})
    bench.fill(batches=100)
    expire_everything(bench)
    first = bench.log().end_offset
    batches = bench.fill(batches=30)
    bench.flush()
    bench.disk.files.remove("/data/checkpoint")
    bench.restart("all")
    assert bench.log().end_offset == first + 30
    assert [batch for batch in bench.read_all() if read_header(batch).base_offset >= first] == batches


def test_the_files_of_a_deleted_log_go_with_it() -> None:
    bench = LogBench("disk", settings={"retention_ms": "1000"})
    bench.fill(batches=100)
    expire_everything(bench)
    assert recycled_files(bench)
    bench.store.delete(bench.log())
    bench.settle()
    assert recycled_files(bench) == []
    assert bench.shared.recycled is not None
    assert bench.shared.recycled.kept_bytes == 0


@pytest.mark.parametrize("durability", CLASSES)
def test_a_file_whose_end_is_being_cut_is_not_used_again(durability: str) -> None:
    """Sealing and recycling happen on different disk threads: the truncation must not hit the recycled file."""
    bench = LogBench(durability, settings={"retention_ms": "1000"})
    seals = Held(bench.shared.disk.segment_queue)
    bench.shared.disk.segment_queue = seals
    for _ in range(3):
        bench.fill(batches=100)
        expire_everything(bench)
    assert bench.log().start_offset == 300
    assert recycled_files(bench) == []
    assert files(bench)[0] == 0, "nothing was taken away while it is being sealed"
    batches = bench.fill(batches=60)
    seals.let_go()
    bench.settle()
    assert bench.read_all() == batches
    bench.shared.tail.forget(bench.log().writer)
    assert bench.read_all() == batches
    expire_everything(bench)
    assert recycled_files(bench), "once they are sealed they go round"


def test_a_file_that_is_being_read_is_not_used_again() -> None:
    bench = LogBench("disk", settings={"retention_ms": "1000"})
    batches = bench.fill(batches=100)
    bench.flush()
    bench.shared.tail.forget(bench.log().writer)
    bench.disk.drop_page_cache()
    log = bench.log()
    reads = [log.read(segment.base_offset, 10_000, 100) for segment in log.segments]
    expire_everything(bench)
    bench.fill(batches=100)
    for read in reads:
        assert isinstance(read, ColdRead)
        part = read.run()
        assert isinstance(part, Slice), part
        found = split(part)
        first = read_header(found[0]).base_offset
        assert found == batches[first : first + len(found)]
        read.ended()


def test_a_full_disk_gets_the_waiting_files_back() -> None:
    bench = LogBench("disk", "cache", settings={"retention_ms": "1000"})
    bench.fill(0, batches=200)
    expire_everything(bench)
    assert recycled_files(bench)
    bench.disk.capacity_bytes = bench.disk.used_bytes
    for _ in range(100):
        bench.append(1, value_bytes=3000)
        bench.settle()
    assert recycled_files(bench) == []


@pytest.mark.parametrize("durability", CLASSES)
def test_a_segment_stays_while_it_is_written(durability: str) -> None:
    """A follower takes over the start of its leader's log before its own slow disk has what is below."""
    bench = bench_of(durability)
    log = bench.log()
    bench.disk.slow_down("segment", 3000)
    for _ in range(60):
        bench.append()
    assert len(log.segments) > 2
    log.advance_start(log.segments[-1].base_offset, lambda _: None)
    for _ in range(20):
        bench.retain()
        bench.settle(500)
    bench.settle(20_000)
    assert log.failed is None
    assert log.acknowledged_end == log.end_offset
    bench.retain()
    assert len(log.segments) == 1

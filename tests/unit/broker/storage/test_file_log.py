"""One log on disk: when it acknowledges, how it rolls, what it rejects, and its memory."""

from __future__ import annotations

import errno

import pytest

from ottla.broker.storage.batches import BatchList, Slice
from ottla.broker.storage.contract import ColdRead
from ottla.broker.storage.journal import JournalLimits
from ottla.broker.storage.tail_cache import ENTRY_BYTES, TailCache
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.records.batch import read_header
from tests.support.sim_logs import LogBench

CLASSES = ["disk", "cache"]
LARGE_JOURNAL = JournalLimits(ring_bytes_max=8 << 20, file_bytes_max=1 << 20, group_bytes_max=1 << 18)


# -- acknowledgement -----------------------------------------------------------------------------------------------


def test_a_disk_log_acknowledges_what_the_journal_has() -> None:
    bench = LogBench("disk")
    bench.disk.stall("journal")
    bench.append()
    bench.settle()
    assert bench.log().acknowledged_end == 0
    bench.disk.release("journal")
    bench.settle()
    assert bench.log().acknowledged_end == 1


def test_a_disk_log_does_not_wait_for_its_segments() -> None:
    bench = LogBench("disk")
    for queue in ("segment", "sync"):
        bench.disk.stall(queue)
    bench.append()
    bench.settle()
    assert bench.log().acknowledged_end == 1


def test_a_cache_log_acknowledges_what_was_written() -> None:
    bench = LogBench("cache")
    bench.disk.stall("segment")
    bench.disk.stall("sync")
    bench.append()
    bench.settle()
    assert bench.log().acknowledged_end == 0
    bench.disk.release("segment")
    bench.settle()
    assert bench.log().acknowledged_end == 1, "no sync is needed"


@pytest.mark.parametrize("durability", CLASSES)
def test_readers_see_nothing_that_is_not_acknowledged(durability: str) -> None:
    bench = LogBench(durability)
    bench.fill(batches=3)
    bench.disk.stall("journal")
    bench.disk.stall("segment")
    bench.append()
    bench.settle()
    log = bench.log()
    assert (log.acknowledged_end, log.end_offset) == (3, 4)
    assert log.read(3, 1000, log.acknowledged_end) == Slice([], 0, 3)


def test_batches_of_one_turn_share_a_write() -> None:
    bench = LogBench("cache", settings={"segment_bytes": "100000"})
    bench.disk.stall("segment")
    for _ in range(20):
        bench.append()
    bench.settle()
    bench.append()
    bench.settle()
    assert bench.log().acknowledged_end == 0
    bench.disk.release("segment", 1)
    assert bench.log().acknowledged_end == 20
    bench.disk.release("segment")
    bench.settle()
    assert bench.log().acknowledged_end == 21


@pytest.mark.parametrize("durability", CLASSES)
def test_writes_that_end_at_once(durability: str) -> None:
    """A thousand tiny segments in one iteration of the loop, each written before its call returns."""
    bench = LogBench(durability, inline=True, settings={"segment_bytes": "1024"}, limits=LARGE_JOURNAL)
    batches = bench.fill(batches=1500, value_bytes=900)
    assert len(bench.log().segments) == 1500
    assert bench.log().acknowledged_end == 1500
    bench.flush()
    bench.restart("none")
    assert bench.read_all() == batches


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_writes_that_fail_at_once(durability: str, error: int) -> None:
    bench = LogBench(durability, inline=True)
    batches = bench.fill(batches=5)
    bench.disk.faults.fail_write(path=".log", error=error)
    for _ in range(20):
        batch = bench.append()
        batches += [batch] if isinstance(batch, bytes) else []
    bench.settle(1000)
    if durability == "cache" and error == errno.EIO:
        assert bench.log().failed is not None
        assert bench.read_all() == batches[: bench.log().acknowledged_end]
        return
    assert len(batches) == 25
    assert bench.read_all() == batches
    bench.flush()
    bench.restart("none")
    assert bench.read_all() == batches


# -- segments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", CLASSES)
def test_a_segment_ends_before_it_gets_too_large(durability: str) -> None:
    bench = LogBench(durability)
    bench.fill(batches=60)
    assert len(bench.log().segments) == 3
    assert all(segment.appended_end <= 4096 for segment in bench.log().segments)
    assert [s.base_offset for s in bench.log().segments[1:]] == [s.end_offset for s in bench.log().segments[:-1]]


@pytest.mark.parametrize("durability", CLASSES)
def test_a_batch_larger_than_a_segment_gets_one_of_its_own(durability: str) -> None:
    bench = LogBench(durability)
    batches = bench.fill(batches=1) + bench.fill(batches=1, value_bytes=10_000) + bench.fill(batches=1)
    assert len(bench.log().segments) == 3
    bench.flush()
    bench.restart("none")
    assert bench.read_all() == batches


def test_a_segment_ends_with_its_time() -> None:
    bench = LogBench("disk", settings={"segment_ms": "60000"})
    bench.fill(batches=2)
    bench.settle(61_000)
    assert len(bench.log().segments) == 1, "nothing happens without a record"
    bench.fill(batches=1)
    assert [segment.base_offset for segment in bench.log().segments] == [0, 2]


def test_a_sealed_segment_gives_its_spare_space_back() -> None:
    bench = LogBench("disk")
    bench.fill(batches=60)
    used = bench.disk.used_bytes
    bench.restart("all")
    assert all(s.appended_end == bench.disk.files.open(s.path).size() for s in bench.log().segments[:-1])
    assert bench.disk.used_bytes <= used


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", CLASSES)
def test_a_full_disk_refuses_and_takes_again(durability: str) -> None:
    bench = LogBench(durability)
    batches = bench.fill(batches=5)
    bench.disk.capacity_bytes = bench.disk.used_bytes
    refused: list[Refused] = []
    for _ in range(2000):
        batch = bench.append()
        bench.settle(1)
        if isinstance(batch, Refused):
            refused.append(batch)
        else:
            batches.append(batch)
    assert refused
    assert {refusal.error for refusal in refused} == {ErrorCode.kafka_storage_error}
    assert "no space" in (refused[0].message or "")
    bench.settle()
    assert bench.log().acknowledged_end == len(batches)
    bench.disk.capacity_bytes = None
    if bench.shared.reserve is not None:
        bench.shared.reserve.hold()
    batches += bench.fill(batches=5)
    assert bench.read_all() == batches
    bench.flush()
    bench.restart("none")
    assert bench.read_all() == batches


@pytest.mark.parametrize("inline", [False, True])
def test_a_write_that_meets_a_full_disk_is_written_later(inline: bool) -> None:
    """Space is reserved in advance; if another process took it, the bytes are kept and retried."""
    bench = LogBench("cache", inline=inline)
    bench.disk.faults.fail_write(path=".log", count=3, error=errno.ENOSPC)
    batch = bench.append()
    bench.settle()
    assert bench.log().acknowledged_end == 0
    more = bench.append()
    bench.settle(5000)
    assert bench.log().acknowledged_end == 2
    assert bench.read_all() == [batch, more]
    bench.restart("all")
    assert bench.read_all() == [batch, more]


def test_no_descriptor_left_is_a_refusal_that_heals() -> None:
    bench = LogBench("disk")
    bench.disk.faults.fail_open(path=".log", error=errno.EMFILE)
    refused = bench.append()
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.kafka_storage_error
    assert isinstance(bench.append(), bytes)


def test_a_failed_log_refuses_and_serves() -> None:
    bench = LogBench("cache")
    batches = bench.fill(batches=5)
    bench.disk.faults.fail_write(path=".log", count=None)
    bench.append()
    bench.settle()
    assert isinstance(bench.append(), Refused)
    assert bench.log().acknowledged_end == 5
    assert bench.read_all() == batches
    bench.shared.tail.forget(bench.log().writer)
    assert bench.read_all() == batches


# -- log start offset ----------------------------------------------------------------------------------------------


def test_a_new_start_is_told_when_it_is_durable() -> None:
    bench = LogBench("disk")
    batches = bench.fill(batches=10)
    told: list[OSError | None] = []
    bench.disk.stall("journal")
    bench.log().advance_start(4, told.append)
    bench.settle()
    assert (bench.log().start_offset, told) == (4, [])
    bench.disk.release("journal")
    bench.settle()
    assert told == [None]
    bench.restart("none")
    assert bench.log().start_offset == 4
    assert bench.read_all() == batches[4:]


def test_a_start_never_goes_back() -> None:
    bench = LogBench("disk")
    bench.fill(batches=10)
    told: list[OSError | None] = []
    for offset in (6, 3, 6, 0):
        bench.log().advance_start(offset, told.append)
    bench.settle()
    assert bench.log().start_offset == 6
    assert told == [None] * 4
    bench.restart("none")
    assert bench.log().start_offset == 6


def test_a_start_that_cannot_be_journaled_is_told_so() -> None:
    bench = LogBench("disk")
    bench.fill(batches=10)
    told: list[OSError | None] = []
    bench.disk.faults.fail_write(path="/journal/", count=None)
    bench.log().advance_start(4, told.append)
    bench.settle()
    assert len(told) == 1
    assert told[0] is not None


# -- the tail cache (safety: reads) ----------------------------------------------------------------------------------


def test_the_tail_is_bounded_over_all_logs() -> None:
    bench = LogBench("disk", "cache", "disk", tail_bytes=5000)
    for _ in range(30):
        for number in range(3):
            bench.append(number)
        bench.settle()
        assert bench.shared.tail.size_bytes <= 5000


def test_the_tail_gives_up_only_what_is_written() -> None:
    bench = LogBench("disk", tail_bytes=1000)
    bench.disk.stall("segment")
    batches = bench.fill(batches=30)
    assert bench.shared.tail.size_bytes == sum(len(batch) + ENTRY_BYTES for batch in batches)
    assert bench.read_all() == batches
    bench.disk.release("segment")
    bench.settle()
    assert bench.shared.tail.size_bytes <= 1000
    assert bench.read_all() == batches


def test_one_log_that_stands_still_does_not_make_the_others_stay() -> None:
    bench = LogBench("disk", "cache", tail_bytes=5000)
    bench.log(0).writer.freeze()
    batches = bench.fill(0, batches=5)
    others: list[bytes] = []
    for _ in range(50):
        others += bench.fill(1, batches=5)
    assert bench.shared.tail.size_bytes <= 5000
    assert bench.read_all(0) == batches
    bench.log(0).writer.thaw(0)
    bench.settle()
    others += bench.fill(1, batches=40)
    assert not bench.log(0).writer.tail.covers(0), "its turn came again"
    assert (bench.read_all(0), bench.read_all(1)) == (batches, others)


def test_what_is_being_sent_outlives_its_place_in_the_tail() -> None:
    bench = LogBench("disk", tail_bytes=1000)
    first = bench.append()
    bench.settle()
    part = bench.log().read(0, 1000, 1)
    assert isinstance(part, Slice)
    bench.fill(batches=30)
    assert not bench.log().writer.tail.covers(0)
    assert b"".join(part.buffers) == first


def test_a_forgotten_log_leaves_no_bytes_behind() -> None:
    bench = LogBench("disk", "disk", tail_bytes=3000)
    bench.fill(0, batches=10)
    bench.store.delete(bench.log(0))
    bench.settle()
    bench.fill(1, batches=50)
    assert 0 < bench.shared.tail.size_bytes <= 3000
    tail = bench.log(1).writer.tail
    assert bench.shared.tail.size_bytes == tail.size_bytes + len(tail) * ENTRY_BYTES


def test_a_tail_of_nothing() -> None:
    class Log:
        tail = BatchList()
        written_end = 1

    log = Log()
    cache = TailCache(0)
    cache.add(log, 0, 1, memoryview(b"x"))
    assert cache.size_bytes == 0
    cache.add(log, 1, 2, memoryview(b"yy"))
    assert cache.size_bytes == 2 + ENTRY_BYTES, "not written yet"
    log.written_end = 2
    cache.on_written(log)
    assert cache.size_bytes == 0


# -- lookups by time -----------------------------------------------------------------------------------------------


def test_a_cold_read_is_a_read() -> None:
    bench = LogBench("disk")
    batches = bench.fill(batches=3)
    bench.shared.tail.forget(bench.log().writer)
    bench.disk.drop_page_cache()
    read = bench.log().read(1, 1, 3)
    assert isinstance(read, ColdRead)
    part = read.run()
    read.ended()
    assert isinstance(part, Slice)
    assert part.next_offset == read_header(batches[1]).next_offset
    assert bench.log().segments[0].readers == 0


def test_an_error_of_the_disk_in_a_cold_read_is_an_error() -> None:
    bench = LogBench("disk")
    bench.fill(batches=3)
    bench.shared.tail.forget(bench.log().writer)
    bench.disk.drop_page_cache()
    read = bench.log().read(1, 1, 3)
    assert isinstance(read, ColdRead)
    bench.disk.faults.fail_read(path=".log")
    with pytest.raises(OSError, match="Input/output"):
        read.run()
    assert bench.read(1) != []


# -- timestamps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", CLASSES)
def test_the_newest_time_is_known_in_an_empty_segment_and_after_a_restart(durability: str) -> None:
    bench = LogBench(durability)
    assert bench.log().newest_ms == -1
    newest = bench.clock.now_ms() + 5_000_000
    bench.append(timestamp_ms=newest)
    bench.append(timestamp_ms=newest - 1000)
    assert bench.log().newest_ms == newest
    bench.log().roll()
    assert (bench.log().active.appended_end, bench.log().newest_ms) == (0, newest)
    bench.flush()
    bench.restart("none")
    assert bench.log().newest_ms == newest

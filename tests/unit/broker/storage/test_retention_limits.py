"""What retention exempts, and what it counts."""

from __future__ import annotations

import pytest

from ottla.broker.storage.retention import expired_segments
from tests.support.sim_logs import LogBench, config_of


def bench_of(durability: str, **settings: str) -> LogBench:
    return LogBench(durability, settings=settings)


def files(bench: LogBench) -> list[int]:
    return [int(name.removesuffix(".log")) for name in bench.names() if name.endswith(".log")]


def test_a_log_that_is_only_compacted_does_not_expire() -> None:
    bench = bench_of("cache", cleanup_policy="compact", retention_bytes="100", retention_ms="1000")
    batches = bench.fill(batches=60)
    bench.flush()
    bench.settle(60_000)
    bench.retain()
    assert bench.log().start_offset == 0
    assert bench.read_all() == batches


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_segments_below_the_start_go_under_any_policy(policy: str) -> None:
    """Up to the start exactly, and with unlimited retention."""
    bench = bench_of("cache", cleanup_policy=policy, retention_ms="-1")
    bench.fill(batches=60)
    bench.flush()
    second = bench.log().segments[1]
    bench.log().advance_start(second.end_offset, lambda _: None)
    assert expired_segments(bench.log(), bench.clock.now_ms()) == bench.log().segments[:2]
    bench.retain()
    assert files(bench)[0] == second.end_offset


def test_a_deleted_active_segment_gives_its_space_back() -> None:
    bench = bench_of("cache", retention_ms="-1")
    bench.fill(batches=5)
    bench.flush()
    bench.log().advance_start(5, lambda _: None)
    bench.retain()
    assert files(bench) in ([], [5])


def test_a_size_of_zero_keeps_only_the_active_segment() -> None:
    bench = bench_of("cache", retention_bytes="0")
    bench.fill(batches=60)
    bench.flush()
    bench.retain()
    assert bench.log().start_offset == bench.log().active.base_offset > 0
    assert len(bench.log().segments) == 1


@pytest.mark.parametrize("limit", ["retention_bytes", "retention_ms"])
def test_retention_counts_what_is_appended(limit: str) -> None:
    """Records in the journal are acknowledged before the segment is written."""
    bench = bench_of("disk", **{limit: "9000" if limit == "retention_bytes" else "1000"})
    bench.fill(batches=100)
    bench.settle(2000)
    log, now_ms = bench.log(), bench.clock.now_ms()
    expected = expired_segments(log, now_ms)
    assert len(expected) > 1
    for segment in log.segments:
        segment.written_end = segment.synced_end = segment.allocated_end = 0
    assert expired_segments(log, now_ms) == expected


def test_retention_by_size_removes_no_more_than_the_excess() -> None:
    bench = bench_of("cache", retention_bytes="9000")
    bench.fill(batches=100)
    log = bench.log()
    excess = log.size_bytes - 9000
    expired = expired_segments(log, bench.clock.now_ms())
    sizes = [segment.appended_end for segment in log.segments]
    assert sum(sizes[: len(expired)]) <= excess < sum(sizes[: len(expired) + 1])
    log.config = config_of(durability="cache", retention_bytes=str(log.size_bytes - sizes[0]))
    assert expired_segments(log, bench.clock.now_ms()) == log.segments[:1], "the excess is exactly one segment"


def test_a_segment_expires_only_after_its_time() -> None:
    bench = bench_of("cache", retention_ms="3000")
    bench.fill(batches=60)
    log = bench.log()
    youngest_ms = log.segments[0].youngest_ms
    assert expired_segments(log, youngest_ms + 3000) == []
    assert expired_segments(log, youngest_ms + 3001)[:1] == log.segments[:1]


def test_a_log_that_is_truncated_or_has_failed_is_left_alone() -> None:
    bench = bench_of("cache", retention_ms="1000")
    bench.fill(batches=60)
    bench.settle(2000)
    log = bench.log()
    log.truncating = True
    bench.retain()
    assert (log.start_offset, files(bench)[0]) == (0, 0)
    log.truncating = False
    log.fail(OSError("the disk is gone"))
    bench.retain()
    assert (log.start_offset, files(bench)[0]) == (0, 0)

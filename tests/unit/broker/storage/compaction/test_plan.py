"""Which segments a compaction may touch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.broker.storage.compaction.plan import groups_of, must_roll_for_compaction, plan_for
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.segment import Segment
from tests.support.sim_logs import LogBench, config_of

SETTINGS = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}


@pytest.fixture
def bench() -> LogBench:
    """A log of several segments, all of it durable."""
    bench = LogBench("cache", settings=SETTINGS)
    bench.fill(batches=150)
    bench.flush()
    assert len(bench.log().segments) > 4
    return bench


def planned(bench: LogBench, last_stable_offset: int | None = None) -> list[Segment]:
    log = bench.log()
    upto = log.end_offset if last_stable_offset is None else last_stable_offset
    plan = plan_for(log, upto, bench.clock.now_ms())
    return [] if plan is None else plan.segments


def test_all_but_the_active_segment(bench: LogBench) -> None:
    assert planned(bench) == bench.log().segments[:-1]


@pytest.mark.parametrize("below", [0, 1])
def test_only_whole_segments_below_the_last_stable_offset(bench: LogBench, below: int) -> None:
    """(safety: after-failover)"""
    end = bench.log().segments[1].end_offset
    assert planned(bench, end - below) == bench.log().segments[: 2 - below]


def _unsynced(segment: Segment) -> None:
    segment.synced_end -= 1


def _unnamed(segment: Segment) -> None:
    segment.entry_durable = False


def _sealing(segment: Segment) -> None:
    segment.sealing = True


@pytest.mark.parametrize("unsettle", [_unsynced, _unnamed, _sealing])
def test_a_segment_that_is_not_settled_ends_the_plan(bench: LogBench, unsettle: Callable[[Segment], None]) -> None:
    unsettle(bench.log().segments[2])
    assert planned(bench) == bench.log().segments[:2]


def test_nothing_above_the_checkpoint(bench: LogBench) -> None:
    flushed = bench.log().segments[:-1]
    bench.fill(batches=100)
    assert len(bench.log().segments) > len(flushed) + 2
    assert planned(bench) == flushed


def test_nothing_from_the_segment_of_the_recovery_point_on(bench: LogBench) -> None:
    """Recovery begins to read there."""
    log = bench.log()
    assert log.durable.recovery_point is not None
    log.durable.recovery_point = log.durable.recovery_point._replace(segment_base=log.segments[2].base_offset)
    assert planned(bench) == log.segments[:2]


def test_space_that_is_allocated_beyond_the_end_does_not_matter(bench: LogBench) -> None:
    for segment in bench.log().segments:
        segment.allocated_end += 4096
    assert planned(bench) == bench.log().segments[:-1]


def test_nothing_above_the_durable_state_of_producers(bench: LogBench) -> None:
    log = bench.log()
    log.durable.state_offset = log.segments[2].end_offset - 1
    assert planned(bench) == log.segments[:2]


def test_young_segments_are_left_alone(bench: LogBench) -> None:
    log = bench.log()
    log.config = config_of(durability="cache", min_compaction_lag_ms="60000", **SETTINGS)
    oldest = log.segments[0]
    assert plan_for(log, log.end_offset, oldest.youngest_ms + 59_999) is None
    plan = plan_for(log, log.end_offset, oldest.youngest_ms + 60_000)
    assert plan is not None
    assert plan.segments[0] is oldest


def test_segments_below_the_start_are_left_to_retention(bench: LogBench) -> None:
    log = bench.log()
    log.start_offset = log.segments[0].end_offset
    assert planned(bench) == log.segments[1:-1]


@pytest.mark.parametrize("state", ["truncating", "deleted"])
def test_a_log_that_changes_otherwise_is_left_alone(bench: LogBench, state: str) -> None:
    setattr(bench.log(), state, True)
    assert planned(bench) == []


def test_groups_are_as_large_as_a_segment(bench: LogBench) -> None:
    """By what is appended."""
    segments = bench.log().segments[:4]
    two = segments[0].appended_end + segments[1].appended_end
    for segment in segments:
        segment.written_end = segment.synced_end = 0
    assert [len(group) for group in groups_of(segments, two)] == [2, 2]
    assert [len(group) for group in groups_of(segments, two - 1)] == [1, 1, 1, 1]


# -- the active segment ------------------------------------------------------------------------------------------------


def rolls(log: FileLog, after_ms: int) -> bool:
    return must_roll_for_compaction(log, log.active.oldest_ms + after_ms)


def test_an_active_segment_is_rolled_when_its_records_wait_too_long(bench: LogBench) -> None:
    log = bench.log()
    log.config = config_of(durability="cache", max_compaction_lag_ms="1000", **SETTINGS)
    assert log.active.appended_end
    assert (rolls(log, 1000), rolls(log, 1001)) == (False, True)
    log.config = config_of(durability="cache", max_compaction_lag_ms="1000", cleanup_policy="delete")
    assert not rolls(log, 10_000)
    log.config = config_of(durability="cache", **SETTINGS)
    assert not rolls(log, 1 << 62)


def test_an_empty_active_segment_is_not_rolled(bench: LogBench) -> None:
    log = bench.log()
    log.config = config_of(durability="cache", max_compaction_lag_ms="1000", **SETTINGS)
    log.roll()
    assert log.active.appended_end == 0
    assert not rolls(log, 10_000)

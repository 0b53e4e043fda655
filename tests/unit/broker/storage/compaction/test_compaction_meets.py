"""Compaction concurrent with readers, retention, truncation, deletion, a full disk and faults."""

from __future__ import annotations

import errno

import pytest

from ottla.broker.storage.compaction.compaction import CompactionResult
from ottla.broker.storage.compaction.mark import MARK_FILE
from ottla.broker.storage.contract import ColdRead
from ottla.broker.storage.file_reads import find_offset_for_time
from ottla.broker.storage.retention import apply_retention, remove_passed
from ottla.broker.storage.truncation import Truncation
from ottla.protocol.records.record import decode_batch
from tests.support.compacted_logs import CompactedLog
from tests.support.power_cut import PowerCut, PowerCutError
from tests.support.sim_logs import key_of, split


def filled() -> CompactedLog:
    """Returns a log that is flushed and ready to be compacted."""
    log = CompactedLog()
    for number in range(40):
        log.put(f"key {number % 4}", f"once {number % 20}")
    log.roll()
    log.bench.flush()
    return log


def compact_now(log: CompactedLog) -> None:
    log.begin_compaction()
    log.bench.settle()


def steps(log: CompactedLog) -> int:
    """Returns the number of steps of a whole compaction."""
    log.begin_compaction()
    count = 0
    while log.compactor.is_running:
        assert log.bench.clock.run_one()
        count += 1
    return count


def run_some(log: CompactedLog, count: int) -> None:
    for _ in range(count):
        log.bench.clock.run_one()


TOTAL = steps(filled())
MOMENTS = sorted({1, 2, *range(5, 40, 5), *range(40, TOTAL, 11), TOTAL - 1})


def leftovers(log: CompactedLog) -> list[str]:
    return [name for name in log.bench.names() if name == "swap" or name.endswith(".compacted")]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_truncation_above_what_is_compacted(moment: int) -> None:
    log = filled()
    log.begin_compaction()
    run_some(log, moment)
    end = log.bench.log().end_offset - 1
    done: list[OSError | None] = []
    Truncation(log.bench.log(), log.bench.flusher, end, done.append).begin()
    log.bench.settle()
    assert done == [None]
    assert not log.compactor.is_running
    log.appended = [record for record in log.appended if record.offset < log.bench.log().end_offset]
    log.check()
    assert leftovers(log) == []
    log.put("after", "after")
    log.compact()
    log.check()


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_truncation_below_what_is_compacted(moment: int) -> None:
    """After an unclean election. Values superseded by truncated records are lost; nothing else is."""
    log = filled()
    log.begin_compaction()
    run_some(log, moment)
    done: list[OSError | None] = []
    Truncation(log.bench.log(), log.bench.flusher, 33, done.append).begin()
    log.bench.settle()
    assert done == [None]
    assert log.bench.log().end_offset <= 33
    assert log.bench.log().durable.compacted_end <= log.bench.log().end_offset
    assert log.bench.log().damages == []
    log.check_offsets()
    assert log.bench.log().durable.compacted_end == 0 or not log.bench.disk.files.exists(log.bench.path(MARK_FILE))
    before = log.bench.read_all()
    log.bench.crash("none")
    log.start()
    assert log.bench.read_all() == before


def test_a_truncation_below_the_mark_forgets_it() -> None:
    log = filled()
    log.compact()
    assert log.bench.log().durable.compacted_end > 50
    done: list[OSError | None] = []
    Truncation(log.bench.log(), log.bench.flusher, 33, done.append).begin()
    log.bench.settle()
    assert done == [None]
    assert log.bench.log().durable.compacted_end == 0
    assert MARK_FILE not in log.bench.names()


@pytest.mark.parametrize("moment", MOMENTS)
def test_retention_takes_segments_meanwhile(moment: int) -> None:
    log = filled()
    log.begin_compaction()
    run_some(log, moment)
    file_log = log.bench.log()
    file_log.advance_start(file_log.segments[len(file_log.segments) // 2].base_offset, lambda _: None)
    for _ in range(3):
        apply_retention(file_log, log.bench.flusher, log.bench.clock.now_ms())
        log.bench.settle()
    assert not log.compactor.is_running
    start = file_log.start_offset
    assert file_log.damages == []
    log.check_offsets()
    wanted = [record for record in log.appended if record.offset >= start]
    log.check_last_values(wanted, log.records())
    log.bench.crash("none")
    log.start()
    assert log.bench.log().start_offset == start
    log.check_last_values(wanted, log.records())


def test_retention_leaves_segments_alone_that_change_places() -> None:
    """The log start passes them durably while they are rewritten: their names are about to belong to other files."""
    log = filled()
    file_log = log.bench.log()
    log.begin_compaction()
    while not leftovers(log):
        assert log.bench.clock.run_one()
    group_end = file_log.segments[1].base_offset
    file_log.advance_start(group_end, lambda _: None)
    log.bench.flusher.run(logs=[file_log], everything=True)
    while not file_log.segments[0].sealing and log.compactor.is_running:
        assert log.bench.clock.run_one()
    assert file_log.segments[0].sealing
    assert file_log.durable.recovery_point is not None
    assert file_log.durable.recovery_point.start_offset == group_end
    remove_passed(file_log)
    log.bench.settle()
    assert not log.compactor.is_running
    log.check_last_values([record for record in log.appended if record.offset >= group_end], log.records())
    assert file_log.damages == []


def test_a_tombstone_never_goes_before_what_it_deletes() -> None:
    """Two consecutive compactions are interrupted at the same step."""
    for moment in range(4, 60, 3):
        log = CompactedLog(delete_retention_ms="100")
        log.put("deleted")
        log.put(*[f"other {number}" for number in range(25)])
        log.put("deleted", value=None)
        log.roll()
        log.bench.flush()
        for _ in range(2):
            log.begin_compaction()
            run_some(log, moment)
            log.bench.crash("all")
            log.start()
            log.bench.clock.advance(1000)
        log.check()


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_log_is_deleted_meanwhile(moment: int) -> None:
    log = filled()
    log.begin_compaction()
    run_some(log, moment)
    gone: list[bool] = []
    log.bench.store.delete(log.bench.log(), lambda: gone.append(True))
    log.bench.settle()
    assert gone
    assert not log.compactor.is_running
    assert not log.bench.disk.files.exists(log.bench.store.directory_of(key_of(0)))


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_broker_stops_meanwhile(moment: int) -> None:
    log = filled()
    log.begin_compaction()
    run_some(log, moment)
    log.compactor.stop()
    log.bench.disk.compaction_queue.close()
    log.bench.settle()
    assert not log.compactor.is_running
    log.check()
    log.bench.crash("all")
    log.start()
    log.check()


# -- readers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_reader_of_old_segments_goes_on_with_them(moment: int) -> None:
    log = filled()
    log.bench.disk.drop_page_cache()
    file_log = log.bench.log()
    log.begin_compaction()
    run_some(log, moment)
    reads = [file_log.read(offset, 500, file_log.acknowledged_end) for offset in range(0, 80, 9)]
    held = list(file_log.segments)
    for segment in held:
        segment.readers += 1
    log.bench.settle()
    assert not log.compactor.is_running
    by_offset = {record.offset: record for record in log.appended}
    for read in reads:
        assert isinstance(read, ColdRead)
        part = read.run()
        records = [record for batch in split(part) for record in decode_batch(batch)]  # type: ignore[arg-type]  # no refusal
        assert all(by_offset[record.offset] == record for record in records)
        read.ended()
    found = find_offset_for_time(file_log, held, log.appended[40].timestamp_ms)
    assert found is not None
    assert found.offset >= 40
    for segment in held:
        segment.end_read()
    assert file_log.damages == []
    log.check()


# -- faults ----------------------------------------------------------------------------------------------------------


def test_a_full_disk_makes_it_give_up_and_say_so() -> None:
    log = filled()
    before = log.bench.read_all()
    log.bench.disk.capacity_bytes = log.bench.disk.used_bytes + 100
    log.begin_compaction()
    log.bench.settle()
    assert log.compactor.outcomes[CompactionResult.NO_SPACE] == 1
    assert any("disk is full" in report for report in log.bench.reports)
    assert log.bench.read_all() == before
    assert leftovers(log) == []
    log.bench.disk.capacity_bytes = None
    log.bench.clock.advance(61_000)
    log.compact()
    log.check()
    assert log.bench.read_all() != before


@pytest.mark.parametrize("nth", range(1, 12))
def test_the_disk_is_full_at_some_write(nth: int) -> None:
    log = filled()
    log.bench.disk.faults.fail_write(nth, path=".compacted", error=errno.ENOSPC)
    log.begin_compaction()
    log.bench.settle()
    assert not log.compactor.is_running
    assert log.bench.log().failed is None
    log.check()
    assert leftovers(log) == []


def test_a_failed_sync_is_never_tried_again_on_the_same_file() -> None:
    log = filled()
    log.bench.disk.faults.fail_sync(path=".compacted")
    log.begin_compaction()
    log.bench.settle()
    assert log.compactor.outcomes[CompactionResult.FAILED] == 1
    assert leftovers(log) == []
    log.check()
    log.compact()
    assert sum(log.compactor.outcomes.values()) == 1, "a log that failed is left alone for a while"
    log.bench.clock.advance(61_000)
    log.compact()
    assert log.compactor.outcomes[CompactionResult.DONE] == 1
    log.check()


@pytest.mark.parametrize("nth", range(1, 8))
def test_a_swap_that_fails_half_way_stops_the_log_until_the_next_start_ends_it(nth: int) -> None:
    log = filled()
    directory = log.bench.store.directory_of(key_of(0))
    log.bench.disk.faults.fail_sync(nth, path=directory, count=1, error=errno.EIO)
    log.begin_compaction()
    log.bench.settle()
    assert not log.compactor.is_running
    records = log.records()
    by_offset = {record.offset: record for record in log.appended}
    assert all(by_offset[record.offset] == record for record in records), "what was acknowledged stays readable"
    log.bench.crash("all")
    log.start()
    log.check()
    assert leftovers(log) == []


def test_a_damaged_segment_is_left_as_it_is() -> None:
    log = filled()
    path = log.bench.log().segments[2].path
    log.bench.disk.damage(path, 100)
    log.begin_compaction()
    log.bench.settle()
    assert log.compactor.outcomes[CompactionResult.FAILED] == 1
    assert any("is damaged" in report for report in log.bench.reports)
    assert leftovers(log) == []
    assert log.bench.log().segments[2].path == path


def cut_at(nth: int) -> CompactedLog:
    """Cuts the power at an operation of a compaction; unsynced data survives."""
    log = filled()
    PowerCut(log.bench.disk, nth)
    with pytest.raises(PowerCutError):
        compact_now(log)
    log.bench.crash("all", seed=nth)
    return log


def test_a_power_cut_at_any_operation_of_the_start_that_ends_a_swap() -> None:
    """The first cut comes between the steps of a swap, the second during the following startup."""
    first = next(nth for nth in range(1, 200) if "swap" in cut_at(nth).bench.names())
    for nth in (first, first + 3):
        operation, started = 1, False
        while not started:
            log = cut_at(nth)
            PowerCut(log.bench.disk, operation)
            try:
                log.start()
                started = True
            except PowerCutError:
                log.bench.crash("some", seed=operation)
                log.start()
            log.check()
            operation += 2
        assert operation > 10

"""Which records compaction keeps and removes, in one log."""

from __future__ import annotations

from ottla.broker.storage.compaction.compaction import CompactionLimits
from ottla.broker.storage.compaction.ended_transactions import EndedTransactions
from ottla.broker.storage.compaction.plan import groups_of, plan_for
from ottla.broker.storage.compaction.segment_rewrite import SegmentRewrite, fill_map
from ottla.broker.storage.contract import ColdRead
from ottla.broker.storage.file_reads import find_max_timestamp, find_offset_for_time
from ottla.broker.storage.segment import Segment
from ottla.protocol.records.batch import BatchHeader, read_header
from ottla.protocol.records.compacted_batches import has_delete_horizon, is_placeholder
from ottla.protocol.records.key_map import Sifting, new_key_map
from ottla.protocol.records.record import decode_batch
from tests.support.compacted_logs import HASH_KEY, CompactedLog, Producer
from tests.support.sim_logs import key_of, split


def headers(log: CompactedLog) -> list[BatchHeader]:
    return [read_header(batch) for batch in log.bench.read_all()]


def offsets_of(log: CompactedLog) -> list[int]:
    return [record.offset for record in log.records()]


def test_the_last_record_of_each_key_stays() -> None:
    log = CompactedLog()
    for _ in range(30):
        log.put("a", "b", "c")
    log.roll()
    log.compact()
    log.check()
    assert len(log.records()) == 4
    assert log.bench.log().durable.compacted_end > 80


def test_after_a_restart_it_is_the_same_log() -> None:
    log = CompactedLog()
    for _ in range(30):
        log.put("a", "b", "c")
    log.roll()
    log.compact()
    before, compacted_end = log.bench.read_all(), log.bench.log().durable.compacted_end
    log.bench.crash("none")
    log.start()
    log.check()
    assert log.bench.read_all() == before
    assert log.bench.log().durable.compacted_end == compacted_end


def test_small_segments_become_one() -> None:
    log = CompactedLog()
    for number in range(100):
        log.put(f"key {number % 5}")
    log.roll()
    before = len(log.bench.log().segments)
    for _ in range(2):
        log.compact()
        log.roll()
    assert before > 10
    assert len(log.bench.log().segments) < 6
    log.check()


def test_a_group_is_no_larger_than_a_segment() -> None:
    log = CompactedLog()
    for number in range(60):
        log.put(f"key {number}")
    segments = log.bench.log().segments
    for group in groups_of(segments, 2500):
        assert len(group) == 1 or sum(segment.appended_end for segment in group) <= 2500
    assert [segment for group in groups_of(segments, 2500) for segment in group] == segments


def test_removed_batches_become_one_placeholder_for_each_leader_epoch() -> None:
    log = CompactedLog()
    for epoch in (1, 1, 1, 2, 2, 5):
        log.append([(b"a", b"x" * 30)], leader_epoch=epoch)
    log.append([(b"a", b"last")], leader_epoch=5)
    log.bench.log().roll()
    log.append([(b"active", b"")], leader_epoch=5)
    log.bench.settle()
    log.compact()
    found = [(each.base_offset, each.next_offset, each.leader_epoch, each.record_count) for each in headers(log)]
    assert found == [(0, 3, 1, 0), (3, 5, 2, 0), (5, 6, 5, 0), (6, 7, 5, 1), (7, 8, 5, 1)]
    assert all(is_placeholder(each) for each in headers(log) if each.record_count == 0)
    log.bench.disk.files.remove(log.bench.path("state"))
    log.bench.crash("all")
    log.start()
    assert list(log.bench.log().epochs) == [(1, 0), (2, 3), (5, 5)]


def test_a_batch_keeps_its_offsets_and_what_its_producer_said() -> None:
    log = CompactedLog()
    log.append([(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4")], producer=Producer(9, 3, 70), compression=4)
    log.append([(b"c", b"5"), (b"d", b"6")], producer=Producer(9, 3, 74))
    log.roll()
    log.compact()
    log.check()
    first = headers(log)[0]
    assert (first.base_offset, first.last_offset_delta, first.record_count) == (0, 3, 2)
    assert (first.producer_id, first.producer_epoch, first.base_sequence, first.last_sequence) == (9, 3, 70, 73)
    assert first.compression == 4


def test_the_last_batch_of_a_producer_stays_without_records() -> None:
    log = CompactedLog()
    log.append([(b"a", b"1")], producer=Producer(9, 0, 0))
    log.append([(b"a", b"2")], producer=Producer(9, 0, 1))
    log.append([(b"a", b"3")])
    log.roll()
    log.compact()
    found = [(each.base_offset, each.record_count, each.producer_id, each.base_sequence) for each in headers(log)[:3]]
    assert found == [(0, 0, -1, -1), (1, 0, 9, 1), (2, 1, -1, -1)]
    log.append([(b"b", b"4")], producer=Producer(9, 0, 2))
    log.roll()
    log.compact()
    assert headers(log)[0].next_offset == 2, "it is not the last any more"


def test_records_without_a_key_go() -> None:
    """They were written before the topic was compacted."""
    log = CompactedLog()
    log.append([(None, b"1"), (b"a", b"2"), (None, b"3")])
    log.append([(None, b"4")])
    log.roll()
    log.compact()
    assert offsets_of(log)[0] == 1
    assert headers(log)[1].record_count == 0


# -- tombstones ------------------------------------------------------------------------------------------------------


def test_a_tombstone_stays_for_its_time_and_then_goes() -> None:
    log = CompactedLog(delete_retention_ms="5000")
    log.append([(b"a", b"1"), (b"b", b"2")])
    log.append([(b"a", None)])
    log.roll()
    log.compact()
    assert offsets_of(log)[:2] == [1, 2]
    assert has_delete_horizon(headers(log)[1])
    log.check()
    log.bench.clock.advance(4000)
    log.roll()
    log.compact()
    assert 2 in offsets_of(log), "not yet"
    log.bench.clock.advance(2000)
    log.roll()
    log.compact()
    assert 2 not in offsets_of(log)
    log.check()


def test_timestamps_are_the_same_beside_a_delete_horizon() -> None:
    log = CompactedLog()
    log.append([(b"a", b"1"), (b"b", None), (b"c", b"3")], compression=3)
    log.append([(b"a", b"1"), (b"x", None)], append_time=True)
    log.append([(b"a", b"4")])
    log.roll()
    log.compact()
    log.check()
    assert next(each for each in headers(log) if has_delete_horizon(each)).max_timestamp >= 0


# -- scheduling ------------------------------------------------------------------------------------------------------


def plan(log: CompactedLog) -> object:
    file_log = log.bench.log()
    return plan_for(file_log, file_log.acknowledged_end, log.bench.clock.now_ms())


def test_it_waits_until_enough_is_dirty() -> None:
    log = CompactedLog(min_cleanable_dirty_ratio="0.5")
    for number in range(60):
        log.put(f"key {number}")
    log.roll()
    log.compact()
    assert log.compactor.outcomes
    end = log.bench.log().durable.compacted_end
    assert end > 0
    log.put(*[f"key {number}" for number in range(20)])
    log.roll()
    log.compact()
    assert log.bench.log().durable.compacted_end == end
    for number in range(60):
        log.put(f"key {number}")
    log.roll()
    log.compact()
    assert log.bench.log().durable.compacted_end > end


def test_young_records_stay_out_of_it() -> None:
    log = CompactedLog(min_compaction_lag_ms="10000")
    log.put("a", "a", "a")
    log.roll()
    log.bench.flush()
    assert plan(log) is None
    log.bench.clock.advance(11_000)
    assert plan(log) is not None


def test_a_record_that_waited_too_long_is_compacted_whatever_the_ratio() -> None:
    log = CompactedLog(min_cleanable_dirty_ratio="1", max_compaction_lag_ms="10000")
    log.put(*[f"key {number}" for number in range(60)])
    log.roll()
    log.compact()
    log.put("key 1", "key 1")
    log.bench.clock.advance(20_000)
    log.begin_compaction()  # rolls the active segment
    log.put("other")
    log.compact()
    assert [record.key for record in log.records()].count(b"key 1") == 1


def test_nothing_above_the_watermark_or_the_recovery_point() -> None:
    log = CompactedLog()
    log.put(*["a"] * 40)
    file_log, now_ms = log.bench.log(), log.bench.clock.now_ms()
    assert plan_for(file_log, file_log.acknowledged_end, now_ms) is None, "nothing is flushed"
    log.bench.flush()
    assert plan_for(file_log, 0, now_ms) is None
    found = plan_for(file_log, 20, now_ms)
    assert found is not None
    assert found.segments[-1].end_offset <= 20


# -- readers ---------------------------------------------------------------------------------------------------------


def with_holes() -> CompactedLog:
    log = CompactedLog()
    for number in range(40):
        log.put("often", "often", f"once {number}")
    log.roll()
    log.compact()
    return log


def test_consumers_do_not_get_empty_batches() -> None:
    log = with_holes()
    file_log = log.bench.log()
    for cold in (False, True):
        if cold:
            log.bench.disk.drop_page_cache()
        offset, found = 0, []
        while offset < file_log.end_offset:
            part = file_log.read(offset, 300, file_log.end_offset, keeps_empty=False)
            part = part.run() if isinstance(part, ColdRead) else part
            assert not hasattr(part, "error")
            batches = split(part)
            assert sum(map(len, batches)) == part.size_bytes
            counts = [read_header(batch).record_count for batch in batches]
            assert len(batches) == 1 or all(counts)
            found += [record for batch in batches for record in decode_batch(batch)]
            offset = part.next_offset
        assert found == log.records()


def test_a_fetch_at_an_offset_that_is_gone_gets_the_next_batch() -> None:
    log = with_holes()
    part = log.bench.log().read(0, 1, 100, keeps_empty=False)
    (batch,) = split(part)  # type: ignore[arg-type]  # it is no cold read
    assert read_header(batch).record_count == 1


def test_an_empty_batch_at_the_end_tells_where_the_end_is() -> None:
    log = CompactedLog(delete_retention_ms="0")
    log.put("a", value=None)
    log.bench.log().roll()
    log.append([(b"b", b"1")])
    for _ in range(3):
        log.roll()
        log.bench.clock.advance(10)
        log.compact()
    assert headers(log)[0].record_count == 0
    part = log.bench.log().read(0, 1000, 1, keeps_empty=False)
    assert [read_header(batch).next_offset for batch in split(part)] == [1]  # type: ignore[arg-type]  # as above


def test_look_ups_by_time_pass_over_what_is_gone() -> None:
    log = CompactedLog()
    log.append([(b"a", b"1")], producer=Producer(3, 0, 0))
    log.bench.clock.advance(1000)
    later_ms = log.bench.clock.now_ms()
    log.append([(b"b", b"2")], producer=Producer(3, 0, 1))
    log.bench.clock.advance(1000)
    log.append([(b"b", b"3"), (b"a", b"4")])
    log.roll()
    log.compact()
    file_log = log.bench.log()
    found = find_offset_for_time(file_log, file_log.segments, later_ms)
    assert found is not None
    assert found.offset == 2
    latest = find_max_timestamp(file_log.segments[:1])
    assert latest is not None
    assert latest.offset == 3


# -- share of the event loop -----------------------------------------------------------------------------------------


def test_the_work_is_cut_into_slices() -> None:
    log = CompactedLog(segment_bytes=str(4 << 20))
    for number in range(30):
        log.append([(b"key %d" % number, b"x" * 100_000)])
    log.roll()
    log.bench.flush()
    segment = log.bench.log().segments[0]
    files, keys = log.bench.disk.files, new_key_map(100, HASH_KEY)
    decided = EndedTransactions()
    read = list(fill_map(files, [segment], 0, keys, decided))
    assert len(read) > 5
    assert sum(size for size, _ in read) == segment.appended_end
    fresh = Segment(files, log.bench.store.directory_of(key_of(0)), 0, 4096, 0)
    rewriting = SegmentRewrite(files, log.bench.store.directory_of(key_of(0)), [segment], fresh, decided)
    moved = list(rewriting.run(keys, Sifting(segment.end_offset, 0, 0, [])))
    assert len(moved) > 5
    assert fresh.appended_end == segment.appended_end
    assert fresh.end_offset == segment.end_offset


def test_the_disk_has_pauses() -> None:
    slow = CompactionLimits(map_bytes_max=1 << 20, cpu_percent=100, io_bytes_per_second_max=20_000)
    log = CompactedLog(limits=slow)
    log.put(*["a"] * 100)
    log.roll()
    log.bench.flush()
    size = sum(segment.appended_end for segment in log.bench.log().segments[:-1])
    log.begin_compaction()
    log.bench.settle(1000 * size / 20_000)
    assert log.compactor.is_running, "to read it takes so long, and then it is written"
    log.bench.settle(3000 * size / 20_000)
    assert not log.compactor.is_running
    log.check()

"""What compaction keeps and removes, on one log."""

from __future__ import annotations

from tests.unit.compacted_logs import CompactedLog


def test_the_last_record_of_each_key_stays() -> None:
    log = CompactedLog()
    for _ in range(30):
        log.put("a", "b", "c")
    log.roll()
    log.compact()
    log.check()
    assert len(log.records()) == 4
    assert log.bench.log().compacted_end > 80


def test_after_a_restart_it_is_the_same_log() -> None:
    log = CompactedLog()
    for _ in range(30):
        log.put("a", "b", "c")
    log.roll()
    log.compact()
    before = log.bench.read_all()
    compacted_end = log.bench.log().compacted_end
    log.bench.crash("none")
    log.start()
    log.check()
    assert log.bench.read_all() == before
    assert log.bench.log().compacted_end == compacted_end


def test_small_segments_become_one() -> None:
    log = CompactedLog()
    for number in range(100):
        log.put(f"key {number % 5}")
    log.roll()
    before = len(log.bench.log().segments)
    log.compact()
    log.roll()
    log.compact()
    assert before > 10
    assert len(log.bench.log().segments) < 6
    log.check()

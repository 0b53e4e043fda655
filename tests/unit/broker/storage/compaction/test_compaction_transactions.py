"""Compaction of logs with transactions: aborted records are removed, markers stay while they are needed."""

from __future__ import annotations

import pytest

from ottla.protocol.records.batch import BatchHeader, read_header
from ottla.protocol.records.compacted_batches import has_delete_horizon
from ottla.protocol.records.record import decode_batch
from tests.support.compacted_logs import CompactedLog
from tests.support.transactional_logs import append_in_transaction, committed_records, end_transaction, stable_offset


def headers(log: CompactedLog) -> list[BatchHeader]:
    return [read_header(batch) for batch in log.bench.read_all()]


def markers(log: CompactedLog) -> list[int]:
    return [header.base_offset for header in headers(log) if header.is_control]


def of_key(log: CompactedLog, key: bytes) -> list[bytes | None]:
    batches = [batch for batch in log.bench.read_all() if not read_header(batch).is_control]
    return [record.value for batch in batches for record in decode_batch(batch) if record.key == key]


def again(log: CompactedLog, after_ms: float = 2000) -> None:
    log.bench.clock.advance(after_ms)
    log.roll()
    log.compact()


@pytest.fixture(params=["disk", "cache"])
def log(request: pytest.FixtureRequest) -> CompactedLog:
    return CompactedLog(request.param, delete_retention_ms="1000")


def test_an_aborted_value_replaces_nothing(log: CompactedLog) -> None:
    log.append([(b"a", b"1")])
    append_in_transaction(log.bench.log(), [(b"a", b"2")], (7, 0, 0))
    end_transaction(log.bench.log(), (7, 0), commit=False)
    log.roll()
    log.compact()
    assert of_key(log, b"a") == [b"1"]


def test_a_committed_value_replaces_the_one_before(log: CompactedLog) -> None:
    log.append([(b"a", b"1")])
    append_in_transaction(log.bench.log(), [(b"a", b"2")], (7, 0, 0))
    end_transaction(log.bench.log(), (7, 0), commit=True)
    log.roll()
    log.compact()
    assert of_key(log, b"a") == [b"2"]
    assert markers(log) == [2], "something is left of the transaction"
    again(log)
    again(log)
    assert markers(log) == [2]


def test_nothing_at_or_above_the_last_stable_offset_changes(log: CompactedLog) -> None:
    log.append([(b"a", b"1")])
    log.append([(b"a", b"2")])
    log.roll()
    append_in_transaction(log.bench.log(), [(b"a", b"3")], (7, 0, 0))
    log.append([(b"a", b"4")])
    log.roll()
    log.append([(b"a", b"5")])
    log.roll()
    log.compact()
    assert of_key(log, b"a") == [b"2", b"3", b"4", b"5"]
    end_transaction(log.bench.log(), (7, 0), commit=True)
    again(log)
    assert of_key(log, b"a") == [b"5"]


def test_a_marker_that_ends_nothing_goes_after_its_horizon(log: CompactedLog) -> None:
    append_in_transaction(log.bench.log(), [(b"a", b"1")], (7, 0, 0))
    marker = end_transaction(log.bench.log(), (7, 0), commit=True)
    append_in_transaction(log.bench.log(), [(b"a", b"2")], (7, 0, 1))
    end_transaction(log.bench.log(), (7, 0), commit=True)
    log.roll()
    log.compact()
    (found,) = (header for header in headers(log) if header.base_offset == marker)
    assert has_delete_horizon(found)
    time_ms = decode_batch(next(b for b in log.bench.read_all() if read_header(b).base_offset == marker))[
        0
    ].timestamp_ms
    assert time_ms < found.base_timestamp, "its own time is the same"
    again(log, after_ms=10)
    assert marker in markers(log), "not yet"
    again(log)
    assert marker not in markers(log)
    log.check_offsets()


def test_the_marker_of_an_aborted_transaction_stays_as_long_as_the_index_has_it(log: CompactedLog) -> None:
    append_in_transaction(log.bench.log(), [(b"a", b"gone")], (7, 0, 0))
    marker = end_transaction(log.bench.log(), (7, 0), commit=False)
    append_in_transaction(log.bench.log(), [(b"a", b"stays")], (7, 0, 1))
    end_transaction(log.bench.log(), (7, 0), commit=True)
    log.roll()
    log.compact()
    assert (len(log.bench.log().transactions.aborted), marker in markers(log)) == (1, True)
    again(log)
    assert (len(log.bench.log().transactions.aborted), marker in markers(log)) == (0, True)
    again(log)
    assert marker not in markers(log)
    log.bench.settle()
    log.bench.flush()
    log.bench.crash("none" if log.bench.log().is_journaled else "all")
    log.start()
    assert len(log.bench.log().transactions.aborted) == 0
    found = committed_records(log.bench.log(), log.bench.read_all())
    assert [record.value for record in found if record.key == b"a"] == [b"stays"]


def test_a_marker_waits_until_the_index_without_its_transaction_is_durable(log: CompactedLog) -> None:
    append_in_transaction(log.bench.log(), [(b"a", b"gone")], (7, 0, 0))
    marker = end_transaction(log.bench.log(), (7, 0), commit=False)
    append_in_transaction(log.bench.log(), [(b"a", b"stays")], (7, 0, 1))
    end_transaction(log.bench.log(), (7, 0), commit=True)
    log.roll()
    log.compact()
    again(log)
    aborted = log.bench.log().transactions.aborted
    assert (len(aborted), aborted.is_saved) == (0, False)
    log.bench.clock.advance(2000)
    log.roll()
    log.bench.flush()
    aborted.removals_saved -= 1
    log.begin_compaction()
    log.bench.settle()
    assert marker in markers(log), "a restart now would find the transaction in the index"
    aborted.removals_saved += 1
    again(log)
    assert marker not in markers(log)


def test_a_producer_whose_transaction_is_emptied_is_known_and_not_open(log: CompactedLog) -> None:
    """Its state is rebuilt from the segments alone, as a new follower does."""
    append_in_transaction(log.bench.log(), [(b"a", b"1"), (b"b", b"1")], (7, 0, 0))
    end_transaction(log.bench.log(), (7, 0), commit=True)
    log.append([(b"a", b"2"), (b"b", b"2")])
    log.roll()
    log.compact()
    again(log)
    again(log)
    assert markers(log) == []
    log.bench.settle()
    log.bench.flush()
    log.bench.disk.files.remove(log.bench.path("state"))
    log.bench.crash("all")
    log.start()
    fresh = log.bench.log()
    entry = fresh.producers.get(7)
    assert entry is not None
    assert entry.batches[-1].last_sequence == 1
    assert fresh.transactions.open_transactions() == []
    assert stable_offset(fresh) == fresh.end_offset

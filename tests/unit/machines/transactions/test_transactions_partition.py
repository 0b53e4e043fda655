"""The transactions of one partition beyond the scenarios: snapshots, the index of aborted ones, truncation, expiry."""

from __future__ import annotations

import pytest

from ottla.machines.transactions.aborted_index import AbortedIndex, AbortedTransaction
from ottla.machines.transactions.partition_snapshot import decode_snapshot, encode_snapshot
from ottla.machines.transactions.partition_table import (
    TO_APPEND,
    AlreadyMarked,
    Marker,
    OpenTransaction,
    PartitionTransactions,
    TransactionalProducer,
    UncommittedEnd,
)
from ottla.machines.transactions.verification import NO_GUARD, Verifications
from ottla.protocol.model.errors import ErrorCode, Refused
from tests.support.transactions_driver import Batch, Control, PartitionLog


def commit(producer_id: int, epoch: int, coordinator_epoch: int = 1, version: int = 2) -> Marker:
    return Marker(producer_id, epoch, coordinator_epoch, True, version)


def abort(producer_id: int, epoch: int, coordinator_epoch: int = 1, version: int = 2) -> Marker:
    return Marker(producer_id, epoch, coordinator_epoch, False, version)


def log_of(*entries: Batch | Marker) -> PartitionLog:
    log = PartitionLog()
    for number, entry in enumerate(entries):
        log.append(Control(entry, number) if isinstance(entry, Marker) else entry)
    return log


# -- markers ---------------------------------------------------------------------------------------------------------


def test_a_marker_that_would_change_nothing_is_found_where_it_is() -> None:
    table = log_of(Batch(1, 0), commit(1, 1)).table
    assert table.judge_marker(commit(1, 1)) == AlreadyMarked(1)
    assert table.judge_marker(commit(1, 1, coordinator_epoch=2)) == TO_APPEND, "it fences the coordinator before"


def test_before_version_2_nobody_can_tell_that_a_marker_is_there_already() -> None:
    """It may end a later transaction of the same epoch that has not written here yet."""
    log = log_of(Batch(1, 0), commit(1, 0, version=1))
    guard = log.table.begin_verification(1, 0, 1, 0)
    marker = abort(1, 0, version=1)
    assert log.table.judge_marker(marker) == TO_APPEND
    log.append(Control(marker))
    assert isinstance(guard, int)
    assert log.table.judge_batch(1, 0, 1, is_transactional=True, guard=guard) is not None


def test_a_marker_without_records_raises_the_epochs() -> None:
    log = log_of(commit(1, 4, coordinator_epoch=7))
    assert log.table.get(1) == TransactionalProducer(4, coordinator_epoch=7, marker_offset=0, changed_ms=0)
    refused = log.table.judge_batch(1, 3, 0, is_transactional=True)
    assert refused == Refused(ErrorCode.invalid_producer_epoch, "fenced by epoch 4")
    assert not len(log.table.aborted)


@pytest.mark.parametrize(
    ("marker", "error"),
    [
        (commit(1, 5, coordinator_epoch=2), ErrorCode.transaction_coordinator_fenced),
        (commit(1, 2, coordinator_epoch=3), ErrorCode.invalid_producer_epoch),
        (commit(1, 3, coordinator_epoch=3), ErrorCode.invalid_producer_epoch),
        (commit(1, 3, coordinator_epoch=3, version=1), None),
        (commit(1, 4, coordinator_epoch=3), None),
        (commit(1, 4, coordinator_epoch=4), None),
        (commit(2, 0, coordinator_epoch=0), None),
    ],
    ids=[
        "old coordinator",
        "old epoch",
        "not raised",
        "not raised, before version 2",
        "raised",
        "new",
        "another producer",
    ],
)
def test_which_markers_end_an_open_transaction(marker: Marker, error: ErrorCode | None) -> None:
    table = log_of(commit(1, 3, coordinator_epoch=3), Batch(1, 3)).table
    verdict = table.judge_marker(marker)
    assert (verdict.error if isinstance(verdict, Refused) else verdict) == (error or TO_APPEND)


# -- batches ---------------------------------------------------------------------------------------------------------


def test_a_new_epoch_does_not_go_on_with_the_transaction_of_the_old_one() -> None:
    """One marker would end both."""
    table = log_of(Batch(1, 0)).table
    guard = table.begin_verification(1, 1, 0, 0)
    assert isinstance(guard, int)
    refused = table.judge_batch(1, 1, 0, is_transactional=True, guard=guard)
    assert refused == Refused(ErrorCode.invalid_txn_state, "the producer's previous transaction is still open")


def test_a_log_that_has_such_batches_all_the_same_is_read() -> None:
    log = log_of(Batch(1, 0), Batch(1, 1), commit(1, 0, version=0))
    assert log.table.get(1) == TransactionalProducer(1, coordinator_epoch=1, marker_offset=2, changed_ms=2)
    assert log.table.last_stable_offset() == 3


def test_a_producer_that_is_not_transactional_leaves_no_trace() -> None:
    log = log_of(Batch(1, 0, is_transactional=False))
    assert len(log.table) == 0
    assert log.table.judge_batch(1, 0, 7, is_transactional=False) is None


def test_batches_of_a_coordinator_have_no_sequence() -> None:
    table = PartitionTransactions()
    guard = table.begin_verification(1, 0, -1, 0)
    assert isinstance(guard, int)
    assert table.judge_batch(1, 0, -1, is_transactional=True, guard=guard, transaction_version=2) is None


# -- verification ----------------------------------------------------------------------------------------------------


def test_a_guard_is_shared_by_batches_of_one_epoch_and_no_others() -> None:
    verifications = Verifications()
    first = verifications.begin(1, 3, 5, 0)
    assert verifications.begin(1, 3, 2, 0) == first
    known = verifications.get(1)
    assert known is not None
    assert known.lowest_sequence == 2
    later = verifications.begin(1, 4, 0, 0)
    assert later != first
    assert verifications.begin(1, 3, 0, 0) == ErrorCode.invalid_producer_epoch
    assert verifications.begin(2, 0, 0, 0) not in (first, later, NO_GUARD)


def test_the_guard_of_an_epoch_before_is_worth_nothing() -> None:
    table = PartitionTransactions()
    old = table.begin_verification(1, 0, 0, 0)
    table.begin_verification(1, 1, 0, 0)
    assert isinstance(old, int)
    refused = table.judge_batch(1, 0, 0, is_transactional=True, guard=old)
    assert refused is not None
    assert refused.error is ErrorCode.invalid_txn_state


def test_a_guard_from_before_a_truncation_is_worth_nothing_after_it() -> None:
    table = PartitionTransactions()
    old = table.begin_verification(1, 0, 0, 0)
    assert table.truncate_to(0)
    table.begin_verification(1, 0, 0, 0)
    assert isinstance(old, int)
    assert table.judge_batch(1, 0, 0, is_transactional=True, guard=old) is not None


def test_without_a_guard_nothing_begins() -> None:
    assert PartitionTransactions().judge_batch(1, 0, 0, is_transactional=True) is not None


def test_a_guard_that_nobody_used_expires() -> None:
    table = PartitionTransactions()
    table.begin_verification(1, 0, 0, 100)
    table.expire(100)
    assert len(table.verifications) == 1
    table.expire(101)
    assert len(table.verifications) == 0


# -- ends ------------------------------------------------------------------------------------------------------------


def test_the_last_stable_offset_is_in_the_log() -> None:
    """Retention may have removed the start of an open transaction."""
    log = log_of(Batch(1, 0), Batch(2, 0), Batch(2, 0))
    assert log.table.last_stable_offset() == 0
    assert log.table.last_stable_offset(start_offset=2) == 2
    assert log.table.last_stable_offset(start_offset=9) == 3, "never above the watermark"


def test_open_transactions_are_told_oldest_first_also_after_one_was_opened_again() -> None:
    log = log_of(Batch(2, 0, timestamp_ms=5), Batch(1, 7, timestamp_ms=6), commit(2, 1))
    assert log.table.open_transactions() == [OpenTransaction(1, 7, 1, 6)]
    log.truncate(2)
    assert log.table.open_transactions() == [OpenTransaction(2, 0, 0, 5), OpenTransaction(1, 7, 1, 6)]


def test_history_that_was_let_go_cannot_be_gone_back_to() -> None:
    log = log_of(Batch(1, 0), commit(1, 1), Batch(1, 1))
    log.table.forget_history(2)
    assert not log.table.truncate_to(1)
    assert encode_snapshot(log.table, 1) is None
    assert log.table == log.replayed(), "and nothing was changed"
    log.truncate(2)
    assert log.table == log.replayed()


def test_expired_producers_do_not_come_back_by_a_truncation_that_does_not_know_them() -> None:
    log = log_of(commit(1, 1), commit(2, 1))
    assert log.table.expire(changed_before_ms=1) == [1]
    assert log.table.expire(changed_before_ms=10) == [2]
    log.truncate(0)
    assert len(log.table) == 0


def test_an_open_transaction_does_not_expire() -> None:
    table = log_of(Batch(1, 0)).table
    assert table.expire(10**15) == []


# -- the index of aborted transactions -------------------------------------------------------------------------------


def aborted_log() -> PartitionLog:
    """0: A, 1: B, 2: abort A, 3: C, 4: abort C, 5: abort B, 6: D, 7: commit D"""
    return log_of(
        Batch(1, 0), Batch(2, 0), abort(1, 1), Batch(3, 0), abort(3, 1), abort(2, 1), Batch(4, 0), commit(4, 1)
    )


def test_the_index_has_what_was_aborted_in_the_order_of_markers() -> None:
    assert list(aborted_log().table.aborted) == [
        AbortedTransaction(1, 0, 2, 1),
        AbortedTransaction(3, 3, 4, 1),
        AbortedTransaction(2, 1, 5, 6),
    ]


@pytest.mark.parametrize(
    ("fetch_offset", "upper_offset", "producers"),
    [(0, 8, [1, 3, 2]), (0, 1, [1]), (1, 2, [1, 2]), (3, 4, [3, 2]), (5, 6, [2]), (6, 8, []), (2, 3, [1, 2])],
)
def test_what_a_reader_is_told_to_skip(fetch_offset: int, upper_offset: int, producers: list[int]) -> None:
    found = aborted_log().table.aborted.between(fetch_offset, upper_offset)
    assert [each.producer_id for each in found] == producers


def test_the_index_as_kafka_has_it_in_a_file() -> None:
    index = aborted_log().table.aborted
    data = index.encode(0, 8)
    assert data[:34].hex() == "00000000000000000001000000000000000000000000000000020000000000000001"
    assert len(data) == 3 * 34
    assert AbortedIndex.decode(data) == index
    assert index.encode(3, 5) == data[34:68]
    assert index.encode(0, 3) + index.encode(3, 8) == data


@pytest.mark.parametrize("damage", ["cut", "version", "order"])
def test_an_index_that_is_damaged_is_not_read(damage: str) -> None:
    data = aborted_log().table.aborted.encode(0, 8)
    damaged = {"cut": data[:-1], "version": b"\0\1" + data[2:], "order": data[34:] + data[:34]}
    assert AbortedIndex.decode(damaged[damage]) is None


def test_what_lies_before_the_log_is_removed_from_the_index() -> None:
    log = aborted_log()
    log.table.remove_below(3)
    assert [each.producer_id for each in log.table.aborted] == [3, 2]


# -- snapshots -------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_the_table_as_of_an_offset() -> None:
    log = log_of(Batch(1, 0, timestamp_ms=3), Batch(2, 5), commit(1, 1), Batch(1, 1))
    for offset in range(5):
        data = encode_snapshot(log.table, offset)
        assert data is not None
        found = decode_snapshot(data)
        assert found is not None
        at, table = found
        part = PartitionLog(log.entries[:offset])
        assert (at, table) == (offset, part.replayed())


def test_a_transaction_that_ended_above_the_watermark_is_in_the_snapshot() -> None:
    log = PartitionLog(is_watermark_held=True)
    log.append(Batch(1, 0))
    log.append(Control(commit(1, 1)))
    data = encode_snapshot(log.table, 2)
    assert data is not None
    found = decode_snapshot(data)
    assert found is not None
    table = found[1]
    assert table.ended == (UncommittedEnd(0, 1),)
    table.advance_watermark(1)
    assert table.last_stable_offset() == 0
    table.advance_watermark(2)
    assert table.last_stable_offset() == 2


def test_a_snapshot_that_is_damaged_is_not_read() -> None:
    data = encode_snapshot(log_of(Batch(1, 0), commit(2, 1)).table, 2)
    assert data is not None
    assert decode_snapshot(data) is not None
    for place in range(len(data)):
        damaged = data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]
        assert decode_snapshot(damaged) is None
        assert decode_snapshot(data[:place]) is None

"""Idempotent producers: Kafka's rules for sequences, epochs, retries and expiry, one per test.

`tests/scenarios/producers` has them as scenarios, `tests/properties/test_producers_model.py` compares them with a model
that remembers everything.
"""

from __future__ import annotations

import pytest

from ottla.machines.producers import (
    Accepted,
    Duplicate,
    OutOfOrder,
    ProducerBatch,
    ProducerStates,
    StaleEpoch,
    Verdict,
)
from ottla.protocol.records.batch import BatchHeader

LAST = 2**31 - 1


class Log:
    """Appends accepted batches, as a partition does."""

    def __init__(self) -> None:
        self.states = ProducerStates()
        self.end = 0

    def produce(self, first: int, count: int = 1, *, epoch: int = 0, producer_id: int = 7, at_ms: int = 0) -> Verdict:
        last = (first + count - 1) & LAST
        verdict = self.states.judge(producer_id, epoch, first, last)
        if isinstance(verdict, Accepted):
            batch = ProducerBatch(first, last, self.end, self.end + count, at_ms)
            self.end += count
            self.states.record(producer_id, epoch, batch)
        return verdict


def first_offset(verdict: Verdict) -> int:
    assert isinstance(verdict, Duplicate), verdict
    return verdict.batch.base_offset


def test_a_sequence_that_goes_on() -> None:
    log = Log()
    assert [log.produce(0, 5), log.produce(5, 1), log.produce(6, 10)] == [Accepted()] * 3


def test_a_producer_that_is_new_here_may_begin_anywhere() -> None:
    """Its earlier batches may have expired together with its state."""
    assert Log().produce(41) == Accepted()


@pytest.mark.parametrize("first", [0, 4, 6, 99, LAST])
def test_a_gap_or_an_overlap_is_refused(first: int) -> None:
    log = Log()
    log.produce(0, 5)
    assert log.produce(first, 3) == OutOfOrder(5)


def test_a_retry_is_answered_with_the_first_offset() -> None:
    log = Log()
    log.produce(0, 3)
    log.produce(3, 4)
    assert first_offset(log.produce(0, 3)) == 0
    assert first_offset(log.produce(3, 4)) == 3
    assert log.end == 7


def test_a_retry_of_another_size_is_no_retry() -> None:
    log = Log()
    log.produce(0, 3)
    assert log.produce(0, 2) == OutOfOrder(3)
    assert log.produce(0, 4) == OutOfOrder(3)


def test_the_last_five_batches_are_remembered_and_no_more() -> None:
    log = Log()
    for sequence in range(8):
        log.produce(sequence)
    assert [first_offset(log.produce(sequence)) for sequence in range(3, 8)] == [3, 4, 5, 6, 7]
    assert log.produce(2) == OutOfOrder(8)


def test_the_sequence_wraps_after_its_last_number() -> None:
    log = Log()
    assert log.produce(LAST - 1) == Accepted()
    assert log.produce(LAST) == Accepted()
    assert log.produce(1) == OutOfOrder(0)
    assert log.produce(0) == Accepted()
    assert first_offset(log.produce(LAST)) == 1


def test_a_batch_across_the_wrap() -> None:
    log = Log()
    assert log.produce(LAST - 1, 4) == Accepted()
    assert log.produce(1) == OutOfOrder(2)
    assert log.produce(2) == Accepted()
    assert first_offset(log.produce(LAST - 1, 4)) == 0


def test_the_header_knows_its_last_sequence_across_the_wrap() -> None:
    header = BatchHeader(0, 0, 0, 2, 0, 0, 3, 0, 0, 7, 0, LAST - 1, 4)
    assert header.last_sequence == 1


def test_a_new_epoch_begins_at_zero() -> None:
    log = Log()
    log.produce(0, 5)
    assert log.produce(5, epoch=1) == OutOfOrder(0)
    assert log.produce(0, epoch=1) == Accepted()
    assert log.produce(1, epoch=1) == Accepted()


def test_the_batches_of_an_older_epoch_are_no_retries() -> None:
    log = Log()
    log.produce(0, 5)
    log.produce(0, 5, epoch=1)
    assert first_offset(log.produce(0, 5, epoch=1)) == 5


def test_an_older_epoch_is_fenced() -> None:
    log = Log()
    log.produce(0, epoch=3)
    assert log.produce(1, epoch=2) == StaleEpoch(3)
    assert log.produce(0, epoch=2) == StaleEpoch(3)


def test_producers_do_not_know_one_another() -> None:
    log = Log()
    log.produce(0, 5)
    assert log.produce(0, 5, producer_id=8) == Accepted()
    assert log.produce(7, producer_id=8) == OutOfOrder(5)


def test_judging_changes_nothing() -> None:
    log = Log()
    log.produce(0)
    for _ in range(3):
        assert log.states.judge(7, 0, 1, 1) == Accepted()
        assert log.states.judge(9, 0, 0, 0) == Accepted()
    assert len(log.states) == 1


def test_silence_expires_a_producer() -> None:
    log = Log()
    log.produce(0, at_ms=1000)
    log.produce(0, producer_id=8, at_ms=5000)
    assert log.states.expire(1000) == []
    assert log.states.expire(1001) == [7]
    assert log.states.get(7) is None
    assert log.produce(99) == Accepted(), "as a producer that is new here"
    assert log.produce(3, producer_id=8) == OutOfOrder(1)


def test_each_batch_keeps_a_producer_from_expiring() -> None:
    log = Log()
    for sequence in range(10):
        log.produce(sequence, at_ms=1000 * sequence)
    assert log.states.expire(9000) == []


def test_a_timestamp_that_goes_back_does_not_make_a_producer_older() -> None:
    log = Log()
    log.produce(0, at_ms=9000)
    log.produce(1, at_ms=10)
    assert log.states.expire(9000) == []


def test_expiry_counts_from_a_new_epoch_as_well() -> None:
    log = Log()
    log.produce(0, at_ms=1000)
    log.produce(0, epoch=1, at_ms=9000)
    assert log.states.expire(9000) == []

"""Writers of the append stream as pure rules: epochs, ids, the outcome of appends after a disconnection, and the state
that a log keeps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.storage.batch_effects import note_batch
from ottla.broker.storage.startup.state_file import LogState, as_of, decode_state, encode_state
from ottla.machines.producers import NO_SEQUENCE, ProducerBatch, ProducerStates
from ottla.machines.producers.states import WRITERS_KEPT
from ottla.machines.writers.resumption import LoggedIds, RejectedIds, account_for, id_of, sequence_of
from ottla.machines.writers.rules import Fenced, UnexpectedEnd, UnknownEpoch, judge_append, judge_fence
from ottla.protocol.model.writer_ids import COUNT_MAX, WRITER_IDS_FROM, epoch_of, next_epoch, producer_id_of
from ottla.protocol.records.batch import read_header, stamp
from ottla.protocol.records.control import writer_fence_batch


def test_an_epoch_is_never_given_out_twice_even_by_a_leader_that_forgot() -> None:
    first = next_epoch(0, 0)
    assert first is not None
    second = next_epoch(0, first)
    assert second is not None
    assert second > first
    later = next_epoch(1, 0)  # unaware of any of them
    assert later is not None
    assert later > second
    assert next_epoch(0, first + COUNT_MAX) is None
    assert epoch_of(producer_id_of(later)) == later
    assert epoch_of(WRITER_IDS_FROM - 1) == 0
    assert producer_id_of(next_epoch(2**31 - 2, 0) or 0) < 2**63


def test_who_may_append() -> None:
    assert judge_append(7, 7, 10, None) is None
    assert judge_append(7, 7, 10, 10) is None
    assert judge_append(7, 7, 10, 9) == UnexpectedEnd(10)
    assert judge_append(6, 7, 10, 10) == Fenced(7)
    assert judge_append(0, 7, 10, None) == Fenced(7)
    assert judge_append(8, 7, 10, None) == UnknownEpoch()
    assert judge_append(0, 0, 10, None) is None


def test_a_fence_may_say_whom_it_replaces() -> None:
    assert judge_fence(7, None) is None
    assert judge_fence(7, 7) is None
    assert judge_fence(7, 6) == Fenced(7)


@given(st.integers(-1, 2**64), st.integers(0, 2**29))
def test_a_sequence_tells_the_id_near_what_is_settled(settled: int, ahead: int) -> None:
    assert id_of(sequence_of(settled + ahead), settled) == settled + ahead
    if ahead <= settled:
        assert id_of(sequence_of(settled - ahead), settled) == settled - ahead


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=20), st.data())
def test_every_id_is_accounted_for(decisions: list[tuple[bool, int]], data: st.DataObject) -> None:
    """Ids are appended or rejected in order; the state reports the outcome of each."""
    batches: list[LoggedIds] = []
    fate: dict[int, int | None] = {}
    next_id, end = 0, 100
    for is_appended, count in decisions:
        if is_appended:
            batches.append(LoggedIds(next_id, count, end))
        for place in range(count):
            fate[next_id + place] = end + place if is_appended else None
        next_id += count
        end += count if is_appended else data.draw(st.integers(0, 3))  # others write too
    last = max((each for each, offset in fate.items() if offset is not None), default=-1)
    settled = data.draw(st.integers(-1, last)) if last >= 0 else -1
    found: dict[int, int | None] = {}
    for account in account_for(settled, last, batches):
        for place in range(account.record_count):
            offset = account.base_offset + place if isinstance(account, LoggedIds) else None
            found[account.first_id + place] = offset
            assert isinstance(account, LoggedIds | RejectedIds)
    assert found == {each: offset for each, offset in fate.items() if settled < each <= last}


def fenced(state: LogState, epoch: int, offset: int) -> None:
    batch = writer_fence_batch(producer_id_of(epoch), timestamp_ms=1000)
    stamp(batch, offset, 0)
    note_batch(read_header(batch), memoryview(batch), state)


def test_a_fence_is_learned_from_the_log_and_kept_in_its_state() -> None:
    state = LogState()
    assert state.producers.writer_epoch == 0
    fenced(state, 5, offset=10)
    fenced(state, 9, offset=11)
    assert state.producers.writer_epoch == 9
    again = decode_state(encode_state(20, state.epochs, state.producers))
    assert again is not None
    assert again.producers.writer_epoch == 9
    cut = ProducerStates(entry for each in state.producers if (entry := as_of(11, each)) is not None)
    assert cut.writer_epoch == 5, "a fence that is truncated away never was"
    cut = ProducerStates(entry for each in state.producers if (entry := as_of(10, each)) is not None)
    assert cut.writer_epoch == 0


def test_a_writer_outlives_silence_and_only_the_latest_are_kept() -> None:
    states = ProducerStates()
    states.record(7, 0, ProducerBatch(0, 0, 0, 1, timestamp_ms=1))
    for epoch in range(1, 100):
        states.record_unnumbered(producer_id_of(epoch), 0, epoch, epoch + 1, timestamp_ms=1)
    assert len(states) == 1 + WRITERS_KEPT
    assert states.expire(heard_before_ms=1_000_000) == [7]
    assert states.writer_epoch == 99
    entry = states.get(producer_id_of(99))
    assert entry is not None
    assert entry.batches[-1].last_sequence == NO_SEQUENCE

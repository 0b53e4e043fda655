"""A log's state file: it reads back, it is complete or ignored, and it is never ahead of its offset."""

from __future__ import annotations

import crc32c
import pytest

from ottla.broker.storage.epochs import LeaderEpochs
from ottla.broker.storage.startup.state_file import LogState, can_tell_as_of, decode_state, encode_state, trim_state
from ottla.machines.producers import ProducerBatch, ProducerEntry, ProducerStates
from ottla.machines.transactions.partition_table import Marker, PartitionTransactions
from tests.support.sim_logs import LogBench

EPOCHS = [(1, 0), (4, 20)]
HEAD_BYTES = 26
EMPTY_TABLE_BYTES = 4 + 26


def batch(sequence: int, offset: int) -> ProducerBatch:
    return ProducerBatch(sequence, sequence, offset, offset + 1, 1000 + offset)


def producers() -> ProducerStates:
    return ProducerStates(
        [
            ProducerEntry(7, 0, 1019, [batch(0, 3), batch(1, 18)]),
            ProducerEntry(8, 3, 1029, [batch(4, 19), batch(5, 25), batch(6, 28)]),
            ProducerEntry(2**62, 32767, 1027, [batch(2**31 - 1, 26)]),
        ]
    )


def described(state: LogState) -> tuple[int, list[tuple[int, int]], list[ProducerEntry]]:
    return state.offset, list(state.epochs), list(state.producers)


def test_what_is_written_reads_back() -> None:
    state = decode_state(encode_state(30, LeaderEpochs(EPOCHS), producers()))
    assert state is not None
    assert described(state) == (30, EPOCHS, list(producers()))


def test_nothing_above_the_offset_is_written() -> None:
    """A producer without remaining batches is rebuilt completely from what is read again."""
    state = decode_state(encode_state(20, LeaderEpochs(EPOCHS), producers()))
    assert state is not None
    assert described(state) == (
        20,
        [(1, 0)],
        [ProducerEntry(7, 0, 1019, [batch(0, 3), batch(1, 18)]), ProducerEntry(8, 3, 1029, [batch(4, 19)])],
    )


def test_a_state_that_is_ahead_is_cut_back() -> None:
    ahead = decode_state(encode_state(30, LeaderEpochs(EPOCHS), producers()))
    assert ahead is not None
    same = decode_state(encode_state(20, LeaderEpochs(EPOCHS), producers()))
    assert same is not None
    assert described(trim_state(ahead, 20)) == described(same)


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_anywhere_is_noticed(bit: int) -> None:
    whole = encode_state(30, LeaderEpochs(EPOCHS), producers())
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        assert decode_state(bytes(damaged)) is None


def test_a_part_is_not_the_whole() -> None:
    whole = encode_state(30, LeaderEpochs(EPOCHS), producers())
    assert [decode_state(whole[:length]) for length in range(len(whole))] == [None] * len(whole)


# -- transactions --------------------------------------------------------------------------------------------------


def table() -> PartitionTransactions:
    """One transaction is committed, one aborted, one open."""
    transactions = PartitionTransactions()
    transactions.record_batch(7, 0, 10, 1000, is_transactional=True)
    transactions.record_batch(8, 3, 12, 1001, is_transactional=True)
    transactions.record_marker(Marker(7, 0, 5, is_commit=False), 14, 1002)
    transactions.record_batch(7, 0, 15, 1003, is_transactional=True)
    transactions.record_marker(Marker(8, 4, 6, is_commit=True), 17, 1004)
    return transactions


def test_transactions_as_of_any_offset() -> None:
    whole = table()
    for offset in range(10, 20):
        state = decode_state(encode_state(offset, LeaderEpochs(), ProducerStates(), whole))
        assert state is not None
        cut = table()
        assert cut.truncate_to(offset)
        assert state.transactions == cut


def test_what_a_state_ahead_of_its_log_still_knows() -> None:
    ahead = decode_state(encode_state(20, LeaderEpochs(), ProducerStates(), table()))
    assert ahead is not None
    trimmed = trim_state(ahead, 16).transactions
    assert [each.producer_id for each in trimmed.open_transactions()] == [7]
    assert trimmed.get(8) is None, "it was open then; the segments tell"
    assert [each.last_offset for each in trimmed.aborted] == [14]


def test_a_state_from_before_there_were_transactions() -> None:
    whole = encode_state(30, LeaderEpochs(EPOCHS), producers())
    body = whole[HEAD_BYTES : len(whole) - EMPTY_TABLE_BYTES]
    head = whole[:4] + (1).to_bytes(2, "big") + bytes(4) + whole[10:HEAD_BYTES]
    old = head[:6] + crc32c.crc32c(head[10:] + body).to_bytes(4, "big") + head[10:] + body
    state = decode_state(old)
    assert state is not None
    assert described(state) == described(LogState(30, LeaderEpochs(EPOCHS), producers()))
    assert len(state.transactions) == 0


def test_what_a_producer_did_before_its_epoch_was_raised() -> None:
    """Each transaction bumps the epoch: a flush in the middle of one needs the state before it."""
    states = ProducerStates()
    states.record(7, 3, ProducerBatch(0, 4, 10, 15, 1000))
    states.record_unnumbered(7, 4, 15, 16, 1001)
    states.record(7, 4, ProducerBatch(0, 0, 16, 17, 1002))
    for offset, epoch, sequence in [(15, 3, 4), (16, 4, -1), (17, 4, 0)]:
        assert can_tell_as_of(offset, states)
        state = decode_state(encode_state(offset, LeaderEpochs(), states))
        entry = state.producers.get(7) if state is not None else None
        assert entry is not None
        assert (entry.epoch, entry.batches[-1].last_sequence) == (epoch, sequence)
    assert can_tell_as_of(10, states), "it was not there yet"
    states.record_unnumbered(7, 5, 17, 18, 1003)
    assert can_tell_as_of(16, states)
    assert not can_tell_as_of(15, states), "one epoch before is known, and no more"


# -- how a log uses it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["lost", "damaged", "cut", "from another offset"])
def test_a_log_without_its_state_learns_it_again(how: str) -> None:
    bench = LogBench("disk", "cache")
    for number in range(2):
        for sequence in range(40):
            bench.append(number, producer=(7, 2, sequence))
    bench.settle()
    bench.flush()
    known = [described(LogState(40, log.epochs, log.producers)) for log in bench.store.logs.values()]
    for number in range(2):
        path = bench.path("state", number)
        if how == "lost":
            bench.disk.files.remove(path)
        elif how == "damaged":
            bench.disk.damage(path, 20)
        elif how == "cut":
            bench.disk.files.replace_file(path, bench.disk.files.read_file(path)[:-1])
        else:
            log = bench.log(number)
            bench.disk.files.replace_file(path, encode_state(11, log.epochs, log.producers))
    bench.restart("all")
    assert [described(LogState(40, log.epochs, log.producers)) for log in bench.store.logs.values()] == known
    if how in ("damaged", "cut"):
        assert len([report for report in bench.reports if "state is damaged" in report]) == 2


def test_a_state_is_learned_over_damage() -> None:
    bench = LogBench("disk")
    for sequence in range(20):
        bench.append(producer=(7, 2, sequence))
    bench.settle()
    bench.flush()
    bench.disk.files.remove(bench.path("state"))
    bench.disk.damage(bench.path("0" * 20 + ".log"), 1000, 0xFF, 4)
    bench.restart("all")
    entry = bench.log().producers.get(7)
    assert entry is not None
    assert [batch.last_sequence for batch in entry.batches] == [15, 16, 17, 18, 19]

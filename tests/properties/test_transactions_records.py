"""Round trips of records; arbitrary bytes in a log; and a partition's table as a function of its log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.machines.coordinators import Instant
from ottla.machines.transactions.aborted_index import AbortedIndex
from ottla.machines.transactions.config import TransactionConfig
from ottla.machines.transactions.coordinator import TransactionCoordinator
from ottla.machines.transactions.encoding import decode, encode
from ottla.machines.transactions.partition_snapshot import decode_snapshot, encode_snapshot
from ottla.machines.transactions.partition_table import Marker
from ottla.machines.transactions.records import (
    WRITTEN_STATES,
    TopicPartition,
    Transaction,
    TransactionRecord,
    TransactionState,
    Unknown,
    Unreadable,
)
from tests.properties.transactions_reading import committed_contents, read_committed, stable_offset
from tests.support.transactions_driver import Batch, Control, PartitionLog, record

texts = st.text(st.characters(codec="utf-8"), max_size=12)
names = st.sampled_from(["a", "b", "orders-1", ""])
int16s = st.integers(-(1 << 15), (1 << 15) - 1)
int32s = st.integers(-(1 << 31), (1 << 31) - 1)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
partition_sets = st.frozensets(st.builds(TopicPartition, texts, int32s), max_size=5)


def transaction(state: TransactionState, partitions: frozenset[TopicPartition], numbers: list[int]) -> Transaction:
    producer_id, updated, started, previous, following, epoch, version, last, timeout = numbers
    return Transaction(
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=timeout,
        state=state,
        partitions=frozenset() if state is TransactionState.EMPTY else partitions,
        updated_ms=updated,
        started_ms=started,
        previous_producer_id=previous,
        next_producer_id=following,
        client_version=version,
        last_producer_epoch=last,
    )


numbers = st.tuples(*[int64s] * 5, *[int16s] * 3, int32s).map(list)
transactions = st.builds(transaction, st.sampled_from(sorted(WRITTEN_STATES)), partition_sets, numbers)
records = st.builds(TransactionRecord, names, st.none() | transactions)


@given(records)
def test_there_and_back(found: TransactionRecord) -> None:
    assert decode(*encode(found)) == found


@given(records, st.data())
def test_a_record_that_was_cut_or_changed_is_refused_or_another(found: TransactionRecord, data: st.DataObject) -> None:
    key, value = encode(found)
    if value is not None and data.draw(st.booleans()):
        cut = data.draw(st.integers(0, len(value) - 1))
        assert isinstance(decode(key, value[:cut]), Unreadable)
    elif value is not None:
        place, byte = data.draw(st.integers(0, len(value) - 1)), data.draw(st.integers(0, 255))
        decode(key, value[:place] + bytes([byte]) + value[place + 1 :])


@given(st.binary(max_size=40), st.none() | st.binary(max_size=60))
def test_whatever_bytes(key: bytes, value: bytes | None) -> None:
    found = decode(key, value)
    if not isinstance(found, Unknown | Unreadable):
        assert decode(*encode(found)) == found


@given(st.lists(records, max_size=12))
def test_a_log_of_any_records_is_loaded(log: list[TransactionRecord]) -> None:
    """Even if it is inconsistent."""
    coordinator = TransactionCoordinator(TransactionConfig())
    for each in log:
        coordinator.replay(*encode(each))
    assert not coordinator.unreadable
    coordinator.loaded(1, Instant(0, 0))
    coordinator.tick(Instant(1 << 40, 1 << 40))


# -- a partition -----------------------------------------------------------------------------------------------------

producer_ids = st.integers(1, 3)
batches = st.builds(Batch, producer_ids, st.integers(0, 2), st.uuids(), st.booleans(), st.integers(0, 9))
markers = st.builds(Marker, producer_ids, st.integers(0, 3), st.integers(0, 2), st.booleans())
entries = st.lists(batches | st.builds(Control, markers, st.integers(0, 9)), max_size=25)


def log_of(found: list[Batch | Control]) -> PartitionLog:
    """With arbitrary content: nothing is validated when a log is replayed."""
    log = PartitionLog(is_watermark_held=True)
    for entry in found:
        log.append(entry)
    return log


@given(entries, st.data())
def test_truncation_is_as_if_it_had_never_been(found: list[Batch | Control], data: st.DataObject) -> None:
    log = log_of(found)
    to = data.draw(st.integers(0, log.end))
    log.truncate(to)
    assert log.table == log_of(found[:to]).table
    for entry in data.draw(entries):
        log.append(entry)
    assert log.table == log.replayed()


@given(entries, st.data())
def test_a_snapshot_and_the_rest_of_the_log_are_the_whole(found: list[Batch | Control], data: st.DataObject) -> None:
    log = log_of(found)
    watermark = data.draw(st.integers(0, log.end))
    log.commit(watermark)
    taken = encode_snapshot(log.table, data.draw(st.integers(0, log.end)))
    assert taken is not None
    decoded = decode_snapshot(taken)
    assert decoded is not None
    offset, table = decoded
    index = AbortedIndex.decode(log.table.aborted.encode(0, offset))
    assert index is not None
    table.aborted = index
    for place in range(offset, log.end):
        record(table, place, found[place])
    assert table == log.table
    table.advance_watermark(watermark)
    assert table.last_stable_offset() == log.table.last_stable_offset()


@given(entries, st.data())
def test_readers_of_committed_records(found: list[Batch | Control], data: st.DataObject) -> None:
    transactional = [each for each in found if isinstance(each, Control) or each.is_transactional]
    log = log_of(transactional)
    log.commit(data.draw(st.integers(0, log.end)))
    stable = log.table.last_stable_offset()
    assert stable == stable_offset(transactional, log.watermark)
    aborted = log.table.aborted.between(0, stable)
    assert read_committed(transactional[:stable], aborted) == committed_contents(transactional, stable)

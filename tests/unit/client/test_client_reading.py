"""The records that a consumer returns: positions, batches that begin too early, transactions, damage."""

from __future__ import annotations

import pytest

from ottla.client.consumer.partition_reader import EARLIEST, PartitionReader
from ottla.client.consumer.types import FetchedBatch, TopicPartition, visible_batches
from ottla.client.errors import CorruptBatchError
from ottla.protocol.records.batch import stamp
from ottla.protocol.records.bridge import split_batches
from ottla.protocol.records.control import ControlKind, end_transaction_batch
from ottla.protocol.records.record import Record, encode_batch

AT = TopicPartition("t", 0)


def batch(base_offset: int, count: int, producer_id: int = -1, transactional: bool = False) -> bytes:
    rows = [Record(base_offset + index, 1000, None, b"%d" % (base_offset + index)) for index in range(count)]
    return bytes(encode_batch(rows, base_offset=base_offset, producer_id=producer_id, transactional=transactional))


def marker(offset: int, producer_id: int, kind: ControlKind) -> bytes:
    made = end_transaction_batch(
        kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1000
    )
    stamp(made, offset, 0)
    return bytes(made)


def fetched(blob: bytes, from_offset: int = 0, aborted: list[tuple[int, int]] | None = None) -> list[FetchedBatch]:
    return list(visible_batches(split_batches(blob), from_offset, aborted))


def reader_of(blob: bytes, from_offset: int = 0, aborted: list[tuple[int, int]] | None = None) -> PartitionReader:
    reader = PartitionReader(AT, from_offset, None, 1 << 20)
    reader.add(fetched(blob, from_offset, aborted))
    return reader


def all_offsets(reader: PartitionReader, records_max: int = 100) -> list[int]:
    offsets: list[int] = []
    while taken := reader.take_records(records_max, check_crc=True):
        offsets += [record.offset for record in taken]
    return offsets


def test_records_come_with_topic_and_partition() -> None:
    (record,) = reader_of(batch(7, 1), 7).take_records(10, check_crc=True)
    assert record.at == AT
    assert tuple(record) == ("t", 0, 7, 1000, None, b"7", ())


@pytest.mark.parametrize("records_max", [1, 2, 3, 100])
def test_the_position_moves_with_the_records(records_max: int) -> None:
    reader = reader_of(batch(0, 3) + batch(3, 4))
    assert reader.fetch_offset == 7
    seen = 0
    while taken := reader.take_records(records_max, check_crc=True):
        seen += len(taken)
        assert reader.position == seen
    assert seen == 7
    assert reader.buffered_bytes == 0


def test_a_batch_that_begins_before_the_wanted_offset() -> None:
    reader = reader_of(batch(0, 10), from_offset=6)
    assert all_offsets(reader) == [6, 7, 8, 9]


def test_a_cut_last_batch_is_left_for_the_next_fetch() -> None:
    blob = batch(0, 2) + batch(2, 2)
    reader = reader_of(blob[:-1])
    assert all_offsets(reader) == [0, 1]
    assert reader.fetch_offset == 2


def test_iteration_moves_the_position_record_by_record() -> None:
    reader = reader_of(batch(0, 3))
    positions = [(record.offset, reader.position) for record in reader.each_record(check_crc=True)]
    assert positions == [(0, 1), (1, 2), (2, 3)]
    assert not reader.has_data


def test_a_seek_in_the_middle_ends_an_iteration() -> None:
    reader = reader_of(batch(0, 3))
    for record in reader.each_record(check_crc=True):
        assert record.offset == 0
        reader.seek(100)
    assert reader.position == reader.fetch_offset == 100
    assert not reader.has_data


def test_a_seek_forgets_what_was_fetched_and_what_is_on_its_way() -> None:
    reader = reader_of(batch(0, 3))
    generation = reader.generation
    reader.seek(1)
    assert reader.generation != generation
    assert not reader.has_data
    assert reader.buffered_bytes == 0


def test_a_reset_keeps_what_is_buffered() -> None:
    reader = reader_of(batch(5, 2), from_offset=5)
    reader.resume_from_lookup(EARLIEST)
    assert reader.fetch_offset is None
    reader.looked_up(0)
    assert reader.position == 5
    reader.add(fetched(batch(0, 1), 0))
    assert all_offsets(reader) == [5, 6, 0]


def test_aborted_transactions_are_hidden_from_readers_of_committed_records() -> None:
    blob = (
        batch(0, 2, producer_id=1, transactional=True)
        + batch(2, 2, producer_id=2, transactional=True)
        + batch(4, 1)
        + marker(5, 1, ControlKind.abort)
        + marker(6, 2, ControlKind.commit)
        + batch(7, 1, producer_id=1, transactional=True)
        + marker(8, 1, ControlKind.commit)
    )
    assert all_offsets(reader_of(blob, aborted=[(1, 0)])) == [2, 3, 4, 7]
    assert all_offsets(reader_of(blob, aborted=None)) == [0, 1, 2, 3, 4, 7]


def test_the_position_passes_what_is_hidden() -> None:
    reader = reader_of(batch(0, 2) + marker(2, 1, ControlKind.commit))
    assert all_offsets(reader) == [0, 1]
    assert reader.position == 3


def test_damage_is_named_and_not_passed_over() -> None:
    damaged = bytearray(batch(2, 2))
    damaged[-1] ^= 1
    reader = reader_of(batch(0, 2) + bytes(damaged) + batch(4, 1))
    assert len(reader.take_records(100, check_crc=True)) == 2
    for _ in range(2):
        with pytest.raises(CorruptBatchError, match="offset 2 of t-0 is damaged") as failure:
            reader.take_records(100, check_crc=True)
        assert (failure.value.topic, failure.value.partition, failure.value.offset) == ("t", 0, 2)
        assert reader.position == 2


def test_batches_for_a_table_go_on_after_records() -> None:
    reader = reader_of(batch(0, 4) + batch(4, 4))
    reader.take_records(3, check_crc=True)
    batches, begin = reader.peek_batches(1 << 20)
    assert [each.header.base_offset for each in batches] == [0, 4]
    assert begin == 3
    reader.drop_through(batches[-1])
    assert reader.position == 8
    assert not reader.has_data


def test_a_table_takes_at_least_one_batch() -> None:
    reader = reader_of(batch(0, 4) + batch(4, 4))
    batches, _ = reader.peek_batches(0)
    assert len(batches) == 1


def test_a_table_leaves_out_what_is_hidden() -> None:
    reader = reader_of(marker(0, 1, ControlKind.commit) + batch(1, 1) + marker(2, 1, ControlKind.commit) + batch(3, 1))
    batches, begin = reader.peek_batches(1 << 20)
    assert [each.header.base_offset for each in batches] == [1, 3]
    assert begin == 0

"""Arrow tables become batches: columns, partitions, order."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ottla.client.consumer.partition_reader import PartitionReader
from ottla.client.consumer.read_tables import take_record_batch, to_table
from ottla.client.errors import DeliveryError, RecordTooLargeError
from ottla.client.metadata import PartitionView, TopicView
from ottla.client.producer.deliveries import TableDelivery, TablePart, merge_parts
from ottla.client.producer.partitioner import StickyChoice, murmur2_partitioner
from ottla.client.producer.settings import ProducerSettings
from ottla.client.producer.tables import named_columns, table_batches
from ottla.protocol.records.bridge import Record, decode_records, split_batches

SETTINGS = ProducerSettings()


def view_of(partition_count: int) -> TopicView:
    partitions = {index: PartitionView(index, 1, 0, (1,), (1,)) for index in range(partition_count)}
    return TopicView("t", None, partitions, tuple(partitions))


def rows_by_partition(
    table: pa.Table, partition_count: int, partition: int | None = None, settings: ProducerSettings = SETTINGS
) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = {}
    for index, payload, count in table_batches(table, view_of(partition_count), partition, settings, StickyChoice(1)):
        records = decode_records(split_batches(payload))
        assert len(records) == count
        found.setdefault(index, []).extend(records)
    return found


def test_each_key_goes_where_a_single_record_would_and_keeps_its_order() -> None:
    keys = [b"key-%d" % (number % 37) for number in range(1000)]
    table = pa.table({"key": keys, "value": [b"%d" % number for number in range(1000)]})
    found = rows_by_partition(table, 5)
    assert sum(map(len, found.values())) == 1000
    for index, records in found.items():
        assert all(murmur2_partitioner(record.key, 5) == index for record in records)
        assert [int(record.value or b"") for record in records] == sorted(
            int(record.value or b"") for record in records
        )


@pytest.mark.parametrize("kind", [pa.binary(), pa.utf8(), pa.large_binary(), pa.dictionary(pa.int32(), pa.utf8())])
def test_keys_of_every_type(kind: pa.DataType) -> None:
    keys = pa.array(["a", "b", "c", "a"]).cast(kind)
    found = rows_by_partition(pa.table({"key": keys, "value": ["0", "1", "2", "3"]}), 3)
    assert sorted(record.key or b"" for records in found.values() for record in records) == [b"a", b"a", b"b", b"c"]


def test_slices_of_a_table_are_placed_by_their_own_keys() -> None:
    table = pa.table({"key": [b"%d" % number for number in range(100)]}).slice(40, 20)
    found = rows_by_partition(table, 4)
    assert sorted(int(record.key or b"") for records in found.values() for record in records) == list(range(40, 60))
    for index, records in found.items():
        assert all(murmur2_partitioner(record.key, 4) == index for record in records)


def test_rows_without_a_key_go_anywhere_but_all_of_them_go() -> None:
    table = pa.table({"key": [b"a", None, b"b", None], "value": [b"0", b"1", b"2", b"3"]})
    found = rows_by_partition(table, 3)
    assert sorted(record.value or b"" for records in found.values() for record in records) == [b"0", b"1", b"2", b"3"]


def test_a_table_without_keys_spreads_its_batches() -> None:
    small = ProducerSettings(batch_bytes=2000)
    table = pa.table({"value": [bytes(100)] * 1000})
    found = rows_by_partition(table, 3, settings=small)
    assert sum(map(len, found.values())) == 1000
    assert set(found) == {0, 1, 2}


def test_a_named_partition_takes_every_row() -> None:
    table = pa.table({"key": [b"a", b"b"], "value": [b"0", b"1"]})
    assert list(rows_by_partition(table, 3, partition=2)) == [2]
    with pytest.raises(DeliveryError, match="partitions 0 to 2, not 3"):
        rows_by_partition(table, 3, partition=3)


def test_a_partitioner_of_the_users_own() -> None:
    settings = ProducerSettings(partitioner=lambda key, count: None if key is None else len(key) % count)
    table = pa.table({"key": [b"", b"a", b"bb", None], "value": [b"0", b"1", b"2", b"3"]})
    found = rows_by_partition(table, 2, settings=settings)
    by_value = {record.value: index for index, records in found.items() for record in records}
    assert (by_value[b"0"], by_value[b"1"], by_value[b"2"]) == (0, 1, 0)
    assert b"3" in by_value


def test_columns_are_chosen_by_name() -> None:
    table = pa.table({"id": ["a"], "body": ["x"], "when": [17], "other": [1]})
    chosen = named_columns(table, "id", "body", "when", "headers")
    assert chosen.column_names == ["key", "value", "timestamp"]
    ((record,),) = rows_by_partition(chosen, 1).values()
    assert (record.key, record.value, record.timestamp_ms) == (b"a", b"x", 17)


def test_a_column_that_was_named_must_be_there() -> None:
    table = pa.table({"value": ["x"]})
    with pytest.raises(ValueError, match='no column "boddy"; it has value'):
        named_columns(table, "key", "boddy", None, None)
    with pytest.raises(ValueError, match="name the table's key or value column"):
        named_columns(pa.table({"a": [1]}), "key", "value", None, None)


def test_a_row_beyond_the_producers_limit_is_refused() -> None:
    with pytest.raises(RecordTooLargeError, match="max_request_bytes"):
        rows_by_partition(pa.table({"value": [bytes(2 << 20)]}), 1)


def test_an_empty_table_has_no_batches() -> None:
    assert rows_by_partition(pa.table({"value": pa.array([], pa.binary())}), 3) == {}


def test_parts_that_follow_one_another_are_joined() -> None:
    parts = [TablePart(0, 0, 5), TablePart(0, 5, 5), TablePart(1, 10, 1), TablePart(1, 12, 1), TablePart(1, -1, 1)]
    assert merge_parts(parts) == [TablePart(0, 0, 10), TablePart(1, 10, 1), TablePart(1, 12, 1), TablePart(1, -1, 1)]


async def test_a_table_is_delivered_when_its_last_part_is() -> None:
    delivery = TableDelivery()
    first, second = delivery.part(0, 4), delivery.part(1, 3)
    left, right = first.cut(1)
    second.delivered("t", 1, 50, -1)
    right.delivered("t", 0, 11, -1)
    delivery.all_handed_over()
    assert not delivery.done.done()
    left.delivered("t", 0, 10, -1)
    assert await delivery.done == [TablePart(0, 10, 4), TablePart(1, 50, 3)]


def test_what_was_sent_as_a_table_is_read_as_a_table() -> None:
    from ottla.client.consumer.types import TopicPartition, visible_batches

    headers = [[{"key": "h", "value": b"1"}], []]
    table = pa.table({"key": [b"k", None], "value": [b"v", None], "timestamp": [1, 2], "headers": headers})
    ((_, payload, _),) = table_batches(table, view_of(1), 0, SETTINGS, StickyChoice())
    reader = PartitionReader(TopicPartition("t", 0), 0, None, 1 << 20)
    reader.add(visible_batches(split_batches(payload), 0, None))
    part, size_bytes = take_record_batch(reader, 1 << 20, check_crc=True)
    assert size_bytes == len(payload)
    assert part is not None
    rows = to_table([part]).to_pylist()
    assert [(row["topic"], row["partition"], row["offset"]) for row in rows] == [("t", 0, 0), ("t", 0, 1)]
    assert [(row["key"], row["value"], row["headers"]) for row in rows] == [(b"k", b"v", headers[0]), (None, None, [])]

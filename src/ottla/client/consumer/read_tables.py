"""Converts fetched batches to Arrow tables. Imports pyarrow, which is an extra."""

from __future__ import annotations

from itertools import takewhile

import pyarrow as pa

from ottla.client.consumer.partition_reader import PartitionReader
from ottla.protocol.records.arrow import SCHEMA as RECORD_SCHEMA
from ottla.protocol.records.arrow import decode_record_batch
from ottla.protocol.records.errors import CorruptRecords

SCHEMA = pa.schema([("topic", pa.dictionary(pa.int32(), pa.utf8())), ("partition", pa.int32()), *RECORD_SCHEMA])


def take_record_batch(reader: PartitionReader, bytes_max: int, *, check_crc: bool) -> tuple[pa.RecordBatch | None, int]:
    """Returns the buffered rows of a partition and their size as received. Advances only past decoded batches."""
    batches, begin = reader.peek_batches(bytes_max)
    if not batches:
        return None, 0
    try:
        columns = decode_record_batch(batches, from_offset=begin, check_crc=check_crc)
    except CorruptRecords as damage:
        if len(batches) == 1:
            raise reader.damaged_at(batches[0].header.base_offset, damage) from damage
        return take_record_batch(reader, 0, check_crc=check_crc)  # decode batches one at a time, up to the damaged one
    reader.drop_through(batches[-1])
    return _with_partition(reader, columns), sum(len(batch.data) for batch in batches)


def take_typed_batch(reader: PartitionReader, bytes_max: int, *, check_crc: bool) -> tuple[pa.RecordBatch | None, bool]:
    """Returns the record columns (`ottla.protocol.records.arrow.SCHEMA`) without topic and partition.

    The second result is whether the broker set the timestamps, which is the same for all rows of one call.
    """
    batches, begin = reader.peek_batches(bytes_max)
    if not batches:
        return None, False
    by_broker = batches[0].header.is_log_append_time
    alike = list(takewhile(lambda batch: batch.header.is_log_append_time is by_broker, batches))
    try:
        columns = decode_record_batch(alike, from_offset=begin, check_crc=check_crc)
    except CorruptRecords as damage:
        if len(alike) == 1:
            raise reader.damaged_at(alike[0].header.base_offset, damage) from damage
        return take_typed_batch(reader, 0, check_crc=check_crc)
    reader.drop_through(alike[-1])
    return columns, by_broker


def _with_partition(reader: PartitionReader, columns: pa.RecordBatch) -> pa.RecordBatch:
    rows = columns.num_rows
    topic = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows), [reader.at.topic])
    partition = pa.repeat(pa.scalar(reader.at.partition, pa.int32()), rows)
    return pa.RecordBatch.from_arrays([topic, partition, *columns.columns], schema=SCHEMA)


def to_table(parts: list[pa.RecordBatch]) -> pa.Table:
    """Concatenates the parts."""
    return pa.Table.from_batches(parts, schema=SCHEMA)

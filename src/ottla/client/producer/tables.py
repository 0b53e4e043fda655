"""Encodes Arrow tables as batches: selects columns and chooses partitions for whole columns.

Imports pyarrow, which is an extra, so the producer imports this module only when a table is sent.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.errors import DeliveryError, RecordTooLargeError
from ottla.client.metadata import TopicView
from ottla.client.producer.partitioner import StickyChoice, murmur2_partitioner, partition_column
from ottla.client.producer.settings import ProducerSettings
from ottla.protocol.records.arrow import encode_table
from ottla.protocol.records.batch import HEADER_BYTES, read_header
from ottla.protocol.records.envelope import Traits

_SLICE_BYTES = 8 * 1024 * 1024
"""Bytes encoded at a time, so that a large table is never in memory twice."""


class TableBatch(NamedTuple):
    """One encoded batch of a table."""

    partition: int
    payload: bytearray
    record_count: int


def named_columns(
    data: pa.Table | pa.RecordBatch, key: str | None, value: str | None, timestamp: str | None, headers: str | None
) -> pa.Table:
    """Selects and renames the columns of a record. A column may be missing only if it was left at its default name."""
    table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
    chosen: dict[str, str] = {}
    for ours, theirs in {"key": key, "value": value, "timestamp": timestamp, "headers": headers}.items():
        if theirs is None:
            continue
        if theirs in table.column_names:
            chosen[ours] = theirs
        elif theirs != ours:
            raise ValueError(f'the table has no column "{theirs}"; it has {", ".join(table.column_names)}')
    if "key" not in chosen and "value" not in chosen:
        raise ValueError(f"name the table's key or value column; it has {', '.join(table.column_names)}")
    return table.select(list(chosen.values())).rename_columns(list(chosen))


def table_batches(
    table: pa.Table, view: TopicView, partition: int | None, settings: ProducerSettings, sticky: StickyChoice
) -> Iterator[TableBatch]:
    """Encodes the table's rows as batches, partition by partition."""
    traits = settings.traits
    if partition is not None:
        if partition not in view.partitions:
            raise DeliveryError(f"{view.name} has partitions 0 to {len(view.partitions) - 1}, not {partition}")
        parts = [(partition, table)]
    elif "key" not in table.column_names or table.column("key").null_count == table.num_rows:
        yield from _sticky_batches(table, view, settings, sticky, traits)
        return
    else:
        parts = _split_by_key(table, view, settings, sticky)
    for index, rows in parts:
        for payload, count in _encode(rows, settings, traits):
            yield TableBatch(index, payload, count)


def _sticky_batches(
    table: pa.Table, view: TopicView, settings: ProducerSettings, sticky: StickyChoice, traits: Traits
) -> Iterator[TableBatch]:
    """Encodes rows without a key: each batch goes to one partition, the next batch to another."""
    for payload, count in _encode(table, settings, traits):
        yield TableBatch(sticky.current(view.name, view.writable), payload, count)
        sticky.move_on(view.name, view.writable)


def _split_by_key(
    table: pa.Table, view: TopicView, settings: ProducerSettings, sticky: StickyChoice
) -> list[tuple[int, pa.Table]]:
    """Returns the rows of each partition in their original order."""
    keys = table.column("key")
    if pa.types.is_dictionary(keys.type):
        keys = keys.cast(keys.type.value_type)
    whole = keys.cast(pa.large_binary()).combine_chunks()
    count = len(view.partitions)
    if settings.partitioner is murmur2_partitioner:
        chosen = _murmur2_partitions(whole, count)
    else:
        chosen = pa.array([settings.partitioner(key.as_py(), count) for key in whole], pa.int32())
        whole = chosen  # null where the partitioner leaves the choice to the producer
    if whole.null_count:
        chosen = pc.if_else(whole.is_null(), sticky.current(view.name, view.writable), chosen)
    if count == 1:
        return [(0, table)]
    order = pc.array_sort_indices(chosen)  # stable, so rows of a partition keep their order
    rows = table.take(order)
    runs = pc.run_end_encode(chosen.take(order))
    ends = runs.run_ends.to_pylist()
    return [
        (index, rows.slice(start, end - start))
        for index, start, end in zip(runs.values.to_pylist(), [0, *ends[:-1]], ends, strict=True)
    ]


def _murmur2_partitions(keys: pa.Array, partition_count: int) -> pa.Array:
    into = array("i", bytes(4 * len(keys)))
    _, ends, values = keys.buffers()
    ends_view = memoryview(ends).cast("B").cast("q")[keys.offset : keys.offset + len(keys) + 1]
    values_view = memoryview(b"" if values is None else values).cast("B")
    partition_column(values_view, ends_view, partition_count, memoryview(into))
    return pa.Array.from_buffers(pa.int32(), len(keys), [None, pa.py_buffer(into)])


def _encode(table: pa.Table, settings: ProducerSettings, traits: Traits) -> Iterator[tuple[bytearray, int]]:
    if not table.num_rows:
        return
    rows_each = max(1, int(table.num_rows * _SLICE_BYTES / max(1, table.nbytes)))
    now_ms = time.time_ns() // 1_000_000
    for start in range(0, table.num_rows, rows_each):
        rows = table.slice(start, rows_each)
        batch_bytes_max = max(settings.batch_bytes, HEADER_BYTES + 1)
        for payload in encode_table(rows, batch_bytes_max=batch_bytes_max, default_timestamp_ms=now_ms, traits=traits):
            count = read_header(payload).record_count
            if count == 1 and len(payload) > settings.max_request_bytes + HEADER_BYTES:
                limit = f"max_request_bytes={settings.max_request_bytes}"
                raise RecordTooLargeError(f"a row of {len(payload)} bytes is larger than the producer's {limit}")
            yield payload, count

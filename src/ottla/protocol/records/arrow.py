"""Converts batches to Arrow record batches and back. The only module that imports pyarrow, which is an extra.

    offset: int64, timestamp: timestamp[ms, UTC], key: binary, value: binary,
    headers: list<struct<key: string, value: binary>>

Buffers are wrapped, not copied, in both directions. When encoding, `key` and `value` may be of any binary or string
type, `timestamp` an integer of milliseconds or a timestamp, `headers` a list of structs or a map; all of them are
optional. A column `offset` is ignored, because the log assigns offsets; any other name is rejected rather than lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from ottla.protocol.records.batch import Batch, Buffer
from ottla.protocol.records.bridge import DEFAULT_TRAITS, decode_columns, encode_columns
from ottla.protocol.records.columns import BinaryColumn, DecodedColumns, HeadersColumn, NumberColumn, SourceColumns
from ottla.protocol.records.envelope import DECODED_BYTES_MAX, Traits

HEADERS = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)
_ENCODED = frozenset({"key", "value", "timestamp", "headers"})
_LEFT_OUT = frozenset({"offset"})
_NARROW_BYTES_MAX = (1 << 31) - 1


def decode_record_batch(
    batches: Iterable[Batch], *, from_offset: int = 0, limit_bytes: int = DECODED_BYTES_MAX, check_crc: bool = True
) -> pa.RecordBatch:
    """Decodes the records of all these batches at or after `from_offset` into one record batch."""
    columns = decode_columns(batches, from_offset=from_offset, limit_bytes=limit_bytes, check_crc=check_crc)
    return to_record_batch(columns)


def encode_table(
    data: pa.Table | pa.RecordBatch,
    *,
    batch_bytes_max: int,
    default_timestamp_ms: int,
    traits: Traits = DEFAULT_TRAITS,
) -> list[bytearray]:
    """Encodes the table's rows as batches, in order. Rows without a timestamp get the default one."""
    columns = source_columns(data, default_timestamp_ms)
    return encode_columns(columns, batch_bytes_max=batch_bytes_max, traits=traits)


def to_record_batch(columns: DecodedColumns) -> pa.RecordBatch:
    """Wraps columns as an Arrow record batch."""
    headers = columns.headers
    pairs = pa.Array.from_buffers(
        HEADERS.value_type,
        headers.keys.length,
        [None],
        null_count=0,
        children=[_wrap(pa.utf8(), headers.keys), _wrap(pa.binary(), headers.values)],
    )
    lists = pa.Array.from_buffers(
        HEADERS, headers.length, [None, pa.py_buffer(headers.offsets)], null_count=0, children=[pairs]
    )
    arrays = [
        _wrap_numbers(SCHEMA.field("offset").type, columns.offsets),
        _wrap_numbers(SCHEMA.field("timestamp").type, columns.timestamps),
        _wrap(pa.binary(), columns.keys),
        _wrap(pa.binary(), columns.values),
        lists,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _wrap(data_type: pa.DataType, column: BinaryColumn) -> pa.Array:
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(data_type, column.length, buffers, null_count=column.null_count)


def _wrap_numbers(data_type: pa.DataType, column: NumberColumn) -> pa.Array:
    return pa.Array.from_buffers(data_type, column.length, [None, pa.py_buffer(column.data)], null_count=0)


def source_columns(data: pa.Table | pa.RecordBatch, default_timestamp_ms: int) -> SourceColumns:
    """Returns the columns of a table as buffers. Several chunks are combined, which copies; a single chunk is used in
    place."""
    names = data.schema.names
    unknown = sorted(set(names) - _ENCODED - _LEFT_OUT)
    if unknown:
        raise ValueError(f"unknown columns {', '.join(unknown)}; a record has {', '.join(sorted(_ENCODED))}")
    if len(set(names)) != len(names):
        raise ValueError("two columns have the same name")
    return SourceColumns(
        row_count=data.num_rows,
        keys=_binary(_column(data, "key"), "key"),
        values=_binary(_column(data, "value"), "value"),
        timestamps=_timestamps(_column(data, "timestamp")),
        headers=_headers(_column(data, "headers")),
        default_timestamp_ms=default_timestamp_ms,
    )


def _column(data: pa.Table | pa.RecordBatch, name: str) -> pa.Array | None:
    """Returns one array, or None for a column that is missing or has no values at all."""
    if name not in data.schema.names:
        return None
    column = data.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_null(column.type):
        return None
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.nbytes > _NARROW_BYTES_MAX and column.type in {pa.binary(), pa.utf8()}:
        column = column.cast(pa.large_binary())  # 32-bit offsets do not span all chunks
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


def _binary(array: pa.Array | None, name: str) -> BinaryColumn | None:
    if array is None:
        return None
    kind = array.type
    if kind in {pa.string_view(), pa.binary_view()} or pa.types.is_fixed_size_binary(kind):
        array = array.cast(pa.large_binary())
    elif kind not in {pa.binary(), pa.utf8(), pa.large_binary(), pa.large_utf8()}:
        raise TypeError(f"the column {name} is of type {kind}; it must be binary or string")
    validity, offsets, data = map(_view, array.buffers())
    return BinaryColumn(
        length=len(array),
        offsets=b"" if offsets is None else offsets,
        data=b"" if data is None else data,
        validity=validity,
        first=array.offset,
        wide=array.type in {pa.large_binary(), pa.large_utf8()},
        null_count=array.null_count,
    )


def _timestamps(array: pa.Array | None) -> NumberColumn | None:
    if array is None:
        return None
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", array.type.tz), safe=False)
    elif pa.types.is_integer(array.type):
        array = array.cast(pa.int64())
    else:
        raise TypeError(f"the column timestamp is of type {array.type}; it must be a timestamp or milliseconds")
    validity, data = map(_view, array.buffers())
    return NumberColumn(len(array), b"" if data is None else data, validity, array.offset)


def _headers(array: pa.Array | None) -> HeadersColumn | None:
    if array is None:
        return None
    kind = array.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind)):
        raise TypeError(f"the column headers is of type {kind}; it must be a list of structs (key, value), or a map")
    keys, values = _header_parts(array)
    header_keys, header_values = _binary(keys, "headers.key"), _binary(values, "headers.value")
    validity, offsets = map(_view, array.buffers()[:2])
    assert header_keys is not None
    assert header_values is not None
    return HeadersColumn(
        length=len(array),
        offsets=b"" if offsets is None else offsets,
        keys=header_keys,
        values=header_values,
        validity=validity,
        first=array.offset,
        wide=pa.types.is_large_list(kind),
    )


def _header_parts(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    if pa.types.is_map(array.type):
        return array.keys, array.items
    pairs = array.values
    names = [field.name for field in pairs.type] if pa.types.is_struct(pairs.type) else []
    if sorted(names) != ["key", "value"]:
        raise TypeError(f"the column headers holds {pairs.type}; it must hold structs of key and value")
    parts = pairs.flatten()  # a null struct has null parts: its key is rejected later
    values = parts[names.index("value")]
    return parts[names.index("key")], pa.nulls(len(pairs), pa.binary()) if pa.types.is_null(values.type) else values


def _view(buffer: Any) -> Buffer | None:
    return None if buffer is None else memoryview(buffer).cast("B")

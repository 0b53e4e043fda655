"""Arrow tables in and out: supported types, slices and chunks, and untrusted buffers."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from ottla.protocol.records import _encoding, bridge, decoding, encoding
from ottla.protocol.records.arrow import SCHEMA, decode_record_batch, encode_table, source_columns
from ottla.protocol.records.batch import split_batches
from ottla.protocol.records.columns import BinaryColumn, HeadersColumn, NumberColumn, SourceColumns
from ottla.protocol.records.errors import TooLarge
from ottla.protocol.records.record import Record, decode_batch, encode_batch

TWINS = pytest.mark.parametrize("writer", [encoding, _encoding], ids=["plain", "compiled"])


@pytest.fixture(params=["plain", "compiled"], autouse=True)
def _twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(bridge, "decoding", decoding)
        monkeypatch.setattr(bridge, "encoding", encoding)


def encoded(data: pa.Table | pa.RecordBatch, **options: Any) -> list[Record]:
    options = {"batch_bytes_max": 1 << 20, "default_timestamp_ms": 42} | options
    return [record for batch in encode_table(data, **options) for record in decode_batch(batch)]


def values(data: pa.Table | pa.RecordBatch) -> list[bytes | None]:
    return [record.value for record in encoded(data)]


def test_batches_become_one_record_batch() -> None:
    first = [Record(0, 10, b"a", None, ()), Record(1, 11, None, b"b", (("h\u00e9", b"x"), ("n", None)))]
    second = [Record(2, 12, b"", b"", ()), Record(3, 13, b"c", b"d" * 1000, (("last", b""),))]
    blob = encode_batch(first) + encode_batch(second, base_offset=2, compression=4)
    batch = decode_record_batch(split_batches(blob + blob[:80]), from_offset=1)
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    assert batch.to_pylist() == [
        {
            "offset": record.offset,
            "timestamp": datetime.fromtimestamp(record.timestamp_ms / 1000, UTC),
            "key": record.key,
            "value": record.value,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }
        for record in [first[1], *second]
    ]


def test_nothing_becomes_an_empty_record_batch() -> None:
    batch = decode_record_batch(split_batches(b""))
    batch.validate(full=True)
    assert batch.num_rows == 0
    assert batch.schema == SCHEMA
    assert encoded(batch) == []


def test_the_limit_is_for_all_batches_together() -> None:
    one = encode_batch([Record(0, 1, None, bytes(1000))], compression=4)
    assert decode_record_batch(split_batches(one * 3), limit_bytes=3100).num_rows == 3
    with pytest.raises(TooLarge):
        decode_record_batch(split_batches(one * 4), limit_bytes=3100)


def test_what_was_read_can_be_written() -> None:
    records = [Record(n, 1000 + n, b"k" if n % 2 else None, b"v" * n, (("h", None),) * (n % 3)) for n in range(50)]
    batch = decode_record_batch(split_batches(encode_batch(records)))
    assert encoded(batch) == records
    assert [record[1:] for record in encoded(batch.slice(7, 20))] == [record[1:] for record in records[7:27]]
    table = pa.Table.from_batches([batch.slice(0, 9), batch.slice(20, 5), batch.slice(9, 11)])
    assert [record[1:] for record in encoded(table)] == [
        record[1:] for record in (*records[:9], *records[20:25], *records[9:20])
    ]


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.utf8(),
        pa.large_utf8(),
        pa.string_view(),
        pa.binary_view(),
        pa.binary(3),
        pa.dictionary(pa.int8(), pa.utf8()),
    ],
    ids=str,
)
def test_kinds_of_bytes(kind: pa.DataType) -> None:
    array = pa.array([b"abc", None, b"def", b"xyz"], pa.binary()).cast(pa.utf8()).cast(pa.binary())
    data = (
        array.cast(pa.utf8()).dictionary_encode()
        if pa.types.is_dictionary(kind)
        else pa.array(
            array.cast(pa.utf8()).to_pylist()
            if kind in {pa.utf8(), pa.large_utf8(), pa.string_view()}
            else array.to_pylist(),
            kind,
        )
    )
    assert values(pa.table({"value": data})) == [b"abc", None, b"def", b"xyz"]
    assert values(pa.table({"value": data.slice(1, 2)})) == [None, b"def"]
    assert [record.key for record in encoded(pa.table({"key": data}))] == [b"abc", None, b"def", b"xyz"]


def test_a_column_without_a_type_is_null() -> None:
    table = pa.table({"key": pa.nulls(2), "value": [b"a", b"b"], "timestamp": pa.nulls(2), "headers": pa.nulls(2)})
    assert encoded(table) == [Record(0, 42, None, b"a"), Record(1, 42, None, b"b")]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, None, 3], pa.int64()), [1, 42, 3]),
        (pa.array([1, None, 3], pa.int32()), [1, 42, 3]),
        (pa.array([1, None, 3], pa.timestamp("ms")), [1, 42, 3]),
        (pa.array([1, None, 3], pa.timestamp("s", "UTC")), [1000, 42, 3000]),
        (pa.array([1_999_999, None, 3_000_000], pa.timestamp("ns")), [1, 42, 3]),
    ],
)
def test_kinds_of_timestamps(column: pa.Array, expected: list[int]) -> None:
    table = pa.table({"value": [b"a", b"b", b"c"], "timestamp": column})
    assert [record.timestamp_ms for record in encoded(table)] == expected
    assert [record.timestamp_ms for record in encoded(table.slice(1))] == expected[1:]


PAIRS = [[("a", b"1"), ("b", None)], [], None, [("c", b"")]]
PAIR = pa.struct([("key", pa.utf8()), ("value", pa.binary())])
TURNED = pa.struct([("value", pa.large_binary()), ("key", pa.large_binary())])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([None if p is None else [{"key": k, "value": v} for k, v in p] for p in PAIRS], pa.list_(PAIR)),
        pa.array([None if p is None else [{"key": k, "value": v} for k, v in p] for p in PAIRS], pa.large_list(PAIR)),
        pa.array(
            [None if p is None else [{"key": k.encode(), "value": v} for k, v in p] for p in PAIRS], pa.list_(TURNED)
        ),
        pa.array(PAIRS, pa.map_(pa.utf8(), pa.binary())),
    ],
    ids=["list", "large list", "fields in another order", "map"],
)
def test_kinds_of_headers(column: pa.Array) -> None:
    expected = [tuple(pairs or ()) for pairs in PAIRS]
    table = pa.table({"value": [b""] * 4, "headers": column})
    assert [record.headers for record in encoded(table)] == expected
    assert [record.headers for record in encoded(table.slice(1))] == expected[1:]
    assert [record.headers for record in encoded(pa.concat_tables([table.slice(3), table]))] == expected[3:] + expected


def test_headers_without_values() -> None:
    column = pa.array([[{"key": "a", "value": None}]], pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.null())])))
    assert encoded(pa.table({"headers": column}))[0].headers == (("a", None),)


@pytest.mark.parametrize("pairs", [[None], [{"key": None, "value": b"x"}]], ids=["null struct", "null key"])
def test_a_header_without_a_key_is_refused(pairs: list[Any]) -> None:
    with pytest.raises(ValueError, match="key is null"):
        encoded(pa.table({"headers": pa.array([pairs], pa.list_(PAIR))}))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": [1, 2]}, "column value is of type int64"),
        ({"key": [1.5]}, "column key is of type double"),
        ({"timestamp": ["now"]}, "column timestamp is of type string"),
        ({"headers": ["x"]}, "column headers is of type string"),
        ({"headers": [["x"]]}, "must hold structs of key and value"),
    ],
)
def test_columns_of_a_wrong_type(columns: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        encoded(pa.table(columns))


def test_a_column_that_no_record_has_is_not_lost_silently() -> None:
    with pytest.raises(ValueError, match="unknown columns partition, vlaue;"):
        encoded(pa.table({"vlaue": [b""], "partition": [1]}))
    assert encoded(pa.table({"offset": [77], "value": [b"x"]})) == [Record(0, 42, None, b"x")]


def test_a_table_is_split_into_batches() -> None:
    table = pa.table({"value": [b"x" * 100] * 1000})
    batches = encode_table(table, batch_bytes_max=5000, default_timestamp_ms=1)
    assert len(batches) > 20
    assert all(len(batch) <= 5000 for batch in batches)
    assert sum(len(decode_batch(batch)) for batch in batches) == 1000


@TWINS
@pytest.mark.parametrize(
    "keys",
    [
        BinaryColumn(2, b"\x00" * 8, b""),
        BinaryColumn(2, b"\x00" * 12, b"", validity=b""),
        BinaryColumn(1, b"\x00" * 12, b""),
        BinaryColumn(2, b"\x00" * 12, b"", first=1),
        BinaryColumn(2, b"\x00" * 12, b"", first=-1),
        BinaryColumn(2, b"\x00" * 12, b"", wide=True),
    ],
    ids=["offsets", "validity", "length", "slice", "negative slice", "wide"],
)
def test_buffers_that_are_too_short(writer: ModuleType, keys: BinaryColumn) -> None:
    with pytest.raises(ValueError, match=r"too short|shorter"):
        writer.ColumnEncoder(SourceColumns(2, keys=keys))
    with pytest.raises(ValueError, match=r"too short|shorter"):
        writer.ColumnEncoder(SourceColumns(2, timestamps=NumberColumn(2, b"\x00" * 15)))


@TWINS
@pytest.mark.parametrize("ends", [(0, 5), (-1, 2), (2, 1), (2**31 - 1, 2**31 - 1)])
def test_offsets_outside_of_the_data(writer: ModuleType, ends: tuple[int, int]) -> None:
    offsets = b"".join(end.to_bytes(4, sys.byteorder, signed=True) for end in ends)
    broken = BinaryColumn(1, offsets, b"abcd")
    fine = BinaryColumn(1, bytes(8), b"")
    sources = [
        SourceColumns(1, keys=broken),
        SourceColumns(1, headers=HeadersColumn(1, offsets, fine, fine)),
        SourceColumns(1, headers=HeadersColumn(1, bytes(4) + b"\x01\x00\x00\x00", broken, fine)),
        SourceColumns(1, headers=HeadersColumn(1, bytes(4) + b"\x01\x00\x00\x00", fine, broken)),
    ]
    for source in sources:
        with pytest.raises(ValueError, match="outside"):
            writer.ColumnEncoder(source).encode(0, 1000)


@TWINS
def test_there_is_no_such_row(writer: ModuleType) -> None:
    encoder = writer.ColumnEncoder(source_columns(pa.table({"value": [b"x"]}), 0))
    for row in (-1, 1, 2**40):
        with pytest.raises(ValueError, match="no row"):
            encoder.encode(row, 1000)


def test_the_bridge_does_not_need_pyarrow() -> None:
    modules = "ottla.protocol.records.bridge, ottla.protocol.records.validation"
    script = f"import sys, {modules}; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0

"""Records on arbitrary input: the compiled module against its twin, and both against aiokafka's and kafka-python's
encoders.

The twins must write the same bytes, read the same records, and reject the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_python_records
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ottla.protocol.records import _decoding, _encoding, decoding, encoding
from ottla.protocol.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    read_header,
    sign,
    split_batches,
    write_header,
)
from ottla.protocol.records.bridge import Traits, decode_records, seal
from ottla.protocol.records.codecs import Compression
from ottla.protocol.records.columns import DecodedColumns, SourceColumns
from ottla.protocol.records.encoding import Row
from ottla.protocol.records.envelope import RecordBytes, open_batch
from ottla.protocol.records.errors import CorruptRecords
from ottla.protocol.records.record import Record, decode_batch, encode_batch
from ottla.protocol.records.varint import append_varint, read_varint, read_varlong, varint_size

small = st.binary(max_size=40)
large = st.builds(lambda part, times: part * times, st.binary(min_size=1, max_size=20), st.integers(0, 2000))
nullable = st.one_of(st.none(), small, large)
names = st.text(max_size=12)
headers = st.lists(st.tuples(names, st.one_of(st.none(), small)), max_size=4)
timestamps = st.one_of(st.integers(0, 2**42), st.integers(-(2**62), 2**62 - 1))
rows = st.tuples(nullable, nullable, headers, timestamps)
many_rows = st.lists(rows, max_size=12)
codecs = st.sampled_from(list(Compression))


def as_records(data: list[Row], base_offset: int = 0) -> list[Record]:
    return [
        Record(base_offset + index, timestamp_ms, key, value, tuple(pairs))
        for index, (key, value, pairs, timestamp_ms) in enumerate(data)
    ]


@given(st.integers(-(2**31), 2**31 - 1))
def test_varints(number: int) -> None:
    written = bytearray()
    append_varint(written, number)
    assert len(written) == varint_size(number) <= 5
    assert read_varint(written, 0, len(written)) == (number, len(written))


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlongs(number: int) -> None:
    written = bytearray()
    append_varint(written, number)
    assert len(written) == varint_size(number) <= 10
    assert read_varlong(written, 0, len(written)) == (number, len(written))
    assert read_varlong(b"\xff" + written + b"\xff", 1, len(written) + 1) == (number, len(written) + 1)


@given(data=many_rows, codec=codecs, base_offset=st.integers(0, 2**62))
def test_round_trip(data: list[Row], codec: Compression, base_offset: int) -> None:
    records = as_records(data, base_offset)
    batch = encode_batch(records, base_offset=base_offset, compression=codec)
    assert decode_batch(batch) == records
    assert decode_records(split_batches(batch)) == records


@given(data=many_rows, budget_bytes=st.integers(0, 5000))
def test_twins_write_the_same_rows(data: list[Row], budget_bytes: int) -> None:
    plain, compiled = encoding.RowEncoder(budget_bytes), _encoding.RowEncoder(budget_bytes)
    at = 0
    while at < len(data):
        after = plain.extend(data, at)
        assert compiled.extend(data, at) == after
        assert (compiled.size_bytes, compiled.record_count) == (plain.size_bytes, plain.record_count)
        taken = plain.take()
        assert compiled.take() == taken
        assert decode_batch(seal(taken, Traits())) == as_records(data[at:after])
        at = after


def columns_of(data: list[Row]) -> DecodedColumns:
    header, body = open_batch(encode_batch(as_records(data)), 1 << 30)
    builder = decoding.ColumnsBuilder()
    builder.append(header, body, 0)
    return builder.finish()


@given(data=many_rows, skip=st.integers(0, 5), budget_bytes=st.integers(0, 5000))
def test_twins_write_the_same_columns(data: list[Row], skip: int, budget_bytes: int) -> None:
    """With slices: the first rows of each column are left out."""
    skip = min(skip, len(data))
    source = sliced(columns_of(data), skip)
    plain, compiled = encoding.ColumnEncoder(source), _encoding.ColumnEncoder(source)
    row = 0
    while row < source.row_count:
        after, records = plain.encode(row, budget_bytes)
        assert compiled.encode(row, budget_bytes) == (after, records)
        assert decode_batch(seal(records, Traits())) == as_records(data[skip + row : skip + after])
        assert len(records.buffer) - HEADER_BYTES <= budget_bytes or records.record_count == 1
        row = after


def sliced(columns: DecodedColumns, skip: int) -> SourceColumns:
    def cut(column: Any) -> Any:
        return replace(column, first=skip, length=column.length - skip)

    return SourceColumns(
        columns.row_count - skip,
        keys=cut(columns.keys),
        values=cut(columns.values),
        timestamps=cut(columns.timestamps),
        headers=cut(columns.headers),
    )


def contents(columns: DecodedColumns) -> list[Any]:
    """The columns with their buffers as bytes, for comparison."""
    parts: list[Any] = [columns.row_count, bytes(columns.offsets.data), bytes(columns.timestamps.data)]
    parts.append(bytes(columns.headers.offsets))
    for column in (columns.keys, columns.values, columns.headers.keys, columns.headers.values):
        validity = None if column.validity is None else bytes(column.validity)
        parts.append((column.length, column.null_count, validity, bytes(column.offsets), bytes(column.data)))
    return parts


def outcome(reader: Any, header: BatchHeader, body: Buffer, from_offset: int) -> list[Any] | None:
    """Returns everything that a reader finds in these records; None if it rejects them."""
    records: list[Record] = []
    builder = reader.ColumnsBuilder()
    attempts: list[Callable[[], Any]] = [
        lambda: reader.decode_rows(header, body, from_offset, records),
        lambda: reader.scan(header, body, 1000),
        lambda: builder.append(header, body, from_offset),
    ]
    found = []
    for attempt in attempts:
        try:
            found.append(attempt())
        except CorruptRecords:
            found.append("refused")
    if "refused" in found:
        assert found == ["refused"] * 3, "one of the ways to read it is less strict than the others"
        return None
    return [records, found[1], contents(builder.finish())]


def agreed(batch: Buffer, from_offset: int = 0) -> list[Record] | None:
    try:
        header, body = open_batch(batch, 1 << 20, check_crc=False)
    except CorruptRecords:
        return None
    plain = outcome(decoding, header, body, from_offset)
    assert outcome(_decoding, header, body, from_offset) == plain
    return None if plain is None else plain[0]


@given(data=many_rows, from_offset=st.integers(0, 14), append_time=st.one_of(st.none(), st.integers(0, 2**42)))
def test_twins_read_the_same(data: list[Row], from_offset: int, append_time: int | None) -> None:
    batch = encode_batch(as_records(data), append_time_ms=append_time)
    records = [record for record in as_records(data) if record.offset >= from_offset]
    if append_time is not None:
        records = [record._replace(timestamp_ms=append_time) for record in records]
    assert agreed(batch, from_offset) == records


mutations = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 400), st.integers(0, 255)),
        st.tuples(st.just("insert"), st.integers(0, 400), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])),
        st.tuples(st.just("delete"), st.integers(0, 400), st.integers(1, 8)),
    ),
    min_size=1,
    max_size=4,
)


def mutated(body: bytearray, changes: list[tuple[str, int, int]]) -> bytearray:
    for kind, at, number in changes:
        at %= len(body) + 1
        if kind == "insert":
            body.insert(at, number)
        elif kind == "delete":
            del body[at : at + number]
        elif at < len(body):
            body[at] = number
    return body


@settings(max_examples=400)
@given(data=st.lists(rows, min_size=1, max_size=5), changes=mutations, count=st.one_of(st.none(), st.integers(0, 8)))
def test_twins_refuse_the_same_mutated_batches(
    data: list[Row], changes: list[tuple[str, int, int]], count: int | None
) -> None:
    """A length beyond the end of the buffer could make a compiled reader overrun it, so lengths are mutated too."""
    batch = encode_batch(as_records(data))
    body = mutated(batch[HEADER_BYTES:], changes)
    header = read_header(batch)._replace(
        batch_length=49 + len(body), record_count=len(data) if count is None else count
    )
    again = bytearray(HEADER_BYTES) + body
    write_header(again, header)
    sign(again)
    agreed(again)


@settings(max_examples=200)
@given(body=st.binary(max_size=120), count=st.integers(0, 20), delta=st.integers(0, 20))
@example(body=b"\x0e\x00\x00\x00\x01\x02a\x00", count=1, delta=0)
def test_twins_agree_on_garbage(body: bytes, count: int, delta: int) -> None:
    agreed(seal(RecordBytes(bytearray(HEADER_BYTES) + body, count, delta, 0, 0), Traits()))


@settings(max_examples=200)
@given(blob=st.binary(max_size=200), data=many_rows, cut=st.integers(0, 300), flips=st.integers(0, 400))
def test_a_blob_of_anything_is_read_or_refused(blob: bytes, data: list[Row], cut: int, flips: int) -> None:
    whole = encode_batch(as_records(data), compression=Compression.lz4) + blob
    whole[flips % len(whole)] ^= 0x10
    try:
        records = decode_records(split_batches(whole[: len(whole) - cut]), limit_bytes=1 << 20)
    except CorruptRecords:
        return
    assert records == as_records(data) or not records or flips % len(whole) < 16, "only what is not signed may differ"


def aiokafka_batch(records: list[Record], codec: Compression) -> bytes:
    builder = aiokafka_records.DefaultRecordBatchBuilder(2, codec, 1, 7, 2, 5, 1 << 30)
    for record in records:
        builder.append(record.offset, record.timestamp_ms, record.key, record.value, list(record.headers))
    return bytes(builder.build())


def kafka_python_batch(records: list[Record], codec: Compression) -> bytes:
    builder = kafka_python_records.DefaultRecordBatchBuilder(2, codec, True, 7, 2, 5, 1 << 30)
    for record in records:
        builder.append(record.offset, record.timestamp_ms, record.key, record.value, list(record.headers))
    return bytes(builder.build())


OTHERS = {
    "aiokafka": (aiokafka_batch, aiokafka_records.DefaultRecordBatch, list(Compression)),
    "kafka-python": (
        kafka_python_batch,
        kafka_python_records.DefaultRecordBatch,
        [Compression.none, Compression.gzip, Compression.lz4],
    ),
}


@pytest.mark.parametrize("other", OTHERS)
@given(data=st.lists(rows, min_size=1, max_size=8), picked=st.data())
def test_others_in_both_directions(other: str, data: list[Row], picked: st.DataObject) -> None:
    build, reader, spoken = OTHERS[other]
    codec = picked.draw(st.sampled_from(spoken))
    records = as_records(data)
    theirs = build(records, codec)
    assert decode_batch(theirs) == records
    assert decode_records(split_batches(theirs)) == records
    ours = encode_batch(
        records, compression=codec, producer_id=7, producer_epoch=2, base_sequence=5, transactional=True
    )
    if codec == Compression.none:
        assert ours[16:] == theirs[16:], "the leader epoch before it is the broker's, whatever a producer writes"
    batch = reader(bytes(ours))
    assert batch.validate_crc()
    read = [Record(each.offset, each.timestamp, each.key, each.value, tuple(each.headers)) for each in batch]
    assert read == records

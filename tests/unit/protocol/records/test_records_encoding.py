"""Encoding of batches: kinds of batches, splitting, producers' sequences, and invalid input."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from ottla.protocol.records import _encoding, bridge, encoding
from ottla.protocol.records.batch import HEADER_BYTES, read_header, split_batches
from ottla.protocol.records.bridge import Traits, decode_records, encode_rows, seal
from ottla.protocol.records.codecs import Compression
from ottla.protocol.records.control import ControlKind, ControlRecord, decode_control, end_transaction_batch
from ottla.protocol.records.encoding import Row
from ottla.protocol.records.errors import CorruptRecords, TooLarge
from ottla.protocol.records.record import Record, decode_batch, encode_batch

TWINS = pytest.mark.parametrize("writer", [encoding, _encoding], ids=["plain", "compiled"])
ROWS: list[Row] = [(b"key %d" % n, b"value" * n, [("name", b"x")] * (n % 3), 1000 + n) for n in range(200)]


def test_the_bridge_is_compiled_here() -> None:
    assert bridge.IS_COMPILED


def test_the_bridge_works_without_a_compiler() -> None:
    script = """
import sys
sys.modules["ottla.protocol.records._encoding"] = None
from ottla.protocol.records import bridge
batches = bridge.encode_rows([(b"k", b"v", [], 1)], batch_bytes_max=1000)
assert bridge.decode_records(bridge.split_batches(batches[0])) == [bridge.Record(0, 1, b"k", b"v")]
assert not bridge.IS_COMPILED and bridge.decoding.__name__ == "ottla.protocol.records.decoding"
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_nulls_empties_and_headers() -> None:
    records = [
        Record(0, 10, None, None, ()),
        Record(1, 9, b"", b"", (("", b""), ("", None))),
        Record(2, 2**40, b"\x00" * 200, b"v" * 70_000, (("\u4f60\u597d", b"\xff"),)),
    ]
    batch = encode_batch(records)
    assert decode_batch(batch) == records
    header = read_header(batch)
    assert (header.base_timestamp, header.max_timestamp) == (10, 2**40)


def test_an_empty_batch_keeps_its_range() -> None:
    for codec in Compression:
        batch = encode_batch([], base_offset=50, last_offset_delta=9, compression=codec)
        assert read_header(batch).next_offset == 60
        assert decode_batch(batch) == []
    emptied = encode_batch([], base_offset=50, last_offset_delta=9)
    assert len(emptied) == HEADER_BYTES
    emptied[22] = Compression.zstd
    assert decode_batch(emptied, check_crc=False) == [], "nothing at all is not malformed zstd"


def test_a_compacted_batch_keeps_its_offsets() -> None:
    records = [Record(103, 1, b"a", b"b"), Record(107, 1, b"c", b"d")]
    batch = encode_batch(records, base_offset=100, last_offset_delta=20)
    assert decode_batch(batch) == records
    assert read_header(batch).next_offset == 121


def test_log_append_time() -> None:
    batch = encode_batch([Record(0, 5, b"k", b"v"), Record(1, 6, b"k", b"v")], append_time_ms=1234)
    assert read_header(batch).is_log_append_time
    assert [record.timestamp_ms for record in decode_batch(batch)] == [1234, 1234]


def test_end_of_a_transaction() -> None:
    batch = end_transaction_batch(
        ControlKind.commit, producer_id=8, producer_epoch=2, coordinator_epoch=5, timestamp_ms=99
    )
    header = read_header(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (8, 2, -1)
    (record,) = decode_batch(batch)
    assert (record.key, record.value) == (bytes.fromhex("00000001"), bytes.fromhex("0000 00000005"))
    assert decode_control(record) == ControlRecord(ControlKind.commit, 0, 5)
    assert decode_records(split_batches(batch)) == [], "control records are not for the user"


def test_other_control_records() -> None:
    assert decode_control(Record(0, 0, bytes.fromhex("00000002"), b"")).kind == ControlKind.leader_change
    assert decode_control(Record(0, 0, bytes.fromhex("00010063"), None)).kind == ControlKind.unknown
    for key, value in (
        (None, b""),
        (b"\x00\x00", b""),
        (b"\xff\xff\x00\x00", b""),
        (bytes(4), b"\x00"),
        (bytes(4), None),
    ):
        with pytest.raises(CorruptRecords):
            decode_control(Record(0, 0, key, value))
    with pytest.raises(ValueError, match="does not end a transaction"):
        end_transaction_batch(
            ControlKind.leader_change, producer_id=1, producer_epoch=1, coordinator_epoch=1, timestamp_ms=1
        )


def as_rows(batches: list[bytearray]) -> list[Row]:
    records = [record for batch in batches for record in decode_batch(batch)]
    return [(record.key, record.value, list(record.headers), record.timestamp_ms) for record in records]


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("batch_bytes_max", [62, 500, 4096, 1 << 20])
def test_rows_are_split_into_batches(codec: Compression, batch_bytes_max: int) -> None:
    batches = encode_rows(ROWS, batch_bytes_max=batch_bytes_max, traits=Traits(compression=codec))
    assert as_rows(batches) == ROWS
    for batch in batches:
        assert len(batch) <= batch_bytes_max or read_header(batch).record_count == 1
        assert read_header(batch).last_offset_delta + 1 == read_header(batch).record_count


def test_records_that_do_not_shrink_go_uncompressed() -> None:
    rows: list[Row] = [(None, bytes(range(256)), (), 0)]
    (batch,) = encode_rows(rows, batch_bytes_max=400, traits=Traits(compression=Compression.gzip))
    assert read_header(batch).compression == Compression.none
    assert as_rows([batch]) == [(None, bytes(range(256)), [], 0)]


def test_sequences_go_on_and_wrap() -> None:
    traits = Traits(producer_id=5, producer_epoch=1, base_sequence=2**31 - 30)
    batches = encode_rows(ROWS, batch_bytes_max=4096, traits=traits)
    expected = 2**31 - 30
    for batch in batches:
        header = read_header(batch)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, expected)
        expected = (expected + header.record_count) % 2**31
    assert expected == 170
    assert len(batches) > 5


def test_no_rows_no_batches() -> None:
    assert encode_rows([], batch_bytes_max=1000) == []


def test_a_batch_that_cannot_hold_anything() -> None:
    with pytest.raises(TooLarge):
        encode_rows(ROWS, batch_bytes_max=HEADER_BYTES)


@TWINS
def test_an_encoder_takes_rows_until_it_is_full(writer: ModuleType) -> None:
    encoder = writer.RowEncoder(budget_bytes=100)
    assert encoder.append(b"k", b"v" * 500, (), 7), "the first is taken whatever its size"
    assert not encoder.append(b"k", b"v", (), 7)
    assert encoder.record_count == 1
    first = seal(encoder.take(), Traits())
    assert (encoder.record_count, encoder.size_bytes) == (0, 0)
    taken = 0
    while encoder.append(b"key", b"value", [("h", None)], 10 + taken):
        taken += 1
    assert encoder.size_bytes <= 100
    second = seal(encoder.take(), Traits(transactional=True))
    assert [record.value for record in decode_batch(first)] == [b"v" * 500]
    assert [record.timestamp_ms for record in decode_batch(second)] == list(range(10, 10 + taken))


@TWINS
def test_an_encoder_takes_any_buffer(writer: ModuleType) -> None:
    encoder = writer.RowEncoder(1000)
    encoder.append(bytearray(b"key"), memoryview(b"value"), [("h", bytearray(b"x"))], 1)
    assert decode_batch(seal(encoder.take(), Traits())) == [Record(0, 1, b"key", b"value", (("h", b"x"),))]


@TWINS
@pytest.mark.parametrize(
    "row",
    [
        ("key", b"", (), 0),
        (b"", "value", (), 0),
        (b"", 5, (), 0),
        (b"", b"", [(b"name", b"")], 0),
        (b"", b"", [(None, b"")], 0),
        (b"", b"", [("name", "value")], 0),
        (b"", b"", [("name",)], 0),
        (b"", b"", [5], 0),
        (b"", b"", [("\ud800", b"")], 0),
        (b"", b"", (), 2**63),
        (b"", b"", (), None),
        (b"", b"", (), "0"),
        (b"", b""),
    ],
)
def test_a_wrong_row_is_refused_and_leaves_nothing_behind(writer: ModuleType, row: tuple[object, ...]) -> None:
    encoder = writer.RowEncoder(1000)
    encoder.append(b"k", b"v", (), 1)
    with pytest.raises((TypeError, ValueError, OverflowError)):
        encoder.extend([row])
    encoder.append(b"l", b"w", (), 2)
    assert [record.key for record in decode_batch(seal(encoder.take(), Traits()))] == [b"k", b"l"]


@TWINS
def test_timestamps_further_apart_than_64_bits(writer: ModuleType) -> None:
    encoder = writer.RowEncoder(1000)
    encoder.append(None, None, (), -(2**63))
    with pytest.raises(ValueError, match="further apart"):
        encoder.append(None, None, (), 1)
    assert encoder.append(None, None, (), -1)
    timestamps = [record.timestamp_ms for record in decode_batch(seal(encoder.take(), Traits()))]
    assert timestamps == [-(2**63), -1]

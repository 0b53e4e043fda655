"""Invalid records that a reader rejects; the compiled reader and its twin reject the same ones."""

from __future__ import annotations

from types import ModuleType

import pytest

from ottla.protocol.records import _decoding, decoding
from ottla.protocol.records.batch import HEADER_BYTES, read_header, sign, write_header
from ottla.protocol.records.codecs import Compression
from ottla.protocol.records.envelope import open_batch
from ottla.protocol.records.errors import CorruptRecords, TooLarge
from ottla.protocol.records.record import Record, decode_batch, encode_batch

TWINS = pytest.mark.parametrize("reader", [decoding, _decoding], ids=["plain", "compiled"])
INT64_MAX = 2**63 - 1


def batch_of(body: str, *, count: int = 1, last_offset_delta: int = 0, **fields: int) -> bytearray:
    """A batch with hand-made records."""
    batch = encode_batch([])
    batch += bytes.fromhex(body)
    header = read_header(batch)._replace(
        batch_length=len(batch) - 12, record_count=count, last_offset_delta=last_offset_delta, **fields
    )
    write_header(batch, header)
    sign(batch)
    return batch


def read_with(reader: ModuleType, batch: bytearray) -> list[Record]:
    header, body = open_batch(batch, 1 << 20)
    records: list[Record] = []
    reader.decode_rows(header, body, 0, records)
    return records


GOOD = "0e 00 00 00 01 02 61 00"
"""A null key, the value "a", no headers."""


@TWINS
def test_the_good_one_is_good(reader: ModuleType) -> None:
    assert read_with(reader, batch_of(GOOD)) == [Record(0, -1, None, b"a", ())]


MALFORMED = {
    "record length beyond the end": "10 00 00 00 01 02 61 00",
    "record length too short": "0c 00 00 00 01 02 61 00",
    "negative record length": "01 00 00 00 01 02 61 00",
    "empty record": "00 00 00 00 00 00 00 00",
    "bytes after the last record": GOOD + "00",
    "bytes at the end of a record": "10 00 00 00 01 02 61 00 00",
    "key length beyond the record": "0e 00 00 00 0a 02 61 00",
    "key length below -1": "0e 00 00 00 03 02 61 00",
    "value length beyond the record": "0e 00 00 00 01 08 61 00",
    "value length below -1": "0e 00 00 00 01 03 61 00",
    "negative number of headers": "0e 00 00 00 01 02 61 01",
    "more headers than bytes": "0e 00 00 00 01 02 61 02",
    "two billion headers": "16 00 00 00 01 02 61 feffffff0f",
    "null header key": "12 00 00 00 01 02 61 02 01 00",
    "header key beyond the record": "12 00 00 00 01 02 61 02 04 00",
    "header value below -1": "12 00 00 00 01 02 61 02 00 05",
    "offset delta beyond the range": "0e 00 00 02 01 02 61 00",
    "negative offset delta": "0e 00 00 01 01 02 61 00",
    "varint of six bytes": "18 00 00 808080808000 01 02 61 00",
    "varint of 33 bits": "16 00 00 8080808010 01 02 61 00",
    "varint that never ends": "0e 00 00 ff ff ff ff ff",
    "varlong of eleven bytes": "22 00 8080808080808080808000 00 01 02 61 00",
    "varlong of 65 bits": "20 00 80808080808080808002 00 01 02 61 00",
    "record cut after its attributes": "02 00 00 00 00 00 00 00",
}


@TWINS
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_records_are_refused(reader: ModuleType, body: str) -> None:
    batch = batch_of(body)
    with pytest.raises(CorruptRecords):
        read_with(reader, batch)
    header, opened = open_batch(batch, 1 << 20)
    with pytest.raises(CorruptRecords):
        reader.scan(header, opened, 0)
    with pytest.raises(CorruptRecords):
        reader.ColumnsBuilder().append(header, opened, 0)


@TWINS
def test_overlong_numbers_are_read_as_java_reads_them(reader: ModuleType) -> None:
    assert read_with(reader, batch_of("10 00 00 8000 01 02 61 00")) == [Record(0, -1, None, b"a", ())]


@TWINS
def test_a_count_that_is_not_true(reader: ModuleType) -> None:
    for count in (0, 2):
        with pytest.raises(CorruptRecords):
            read_with(reader, batch_of(GOOD, count=count, last_offset_delta=5))


@TWINS
def test_offsets_must_rise(reader: ModuleType) -> None:
    first, second = "0e 00 00 02 01 02 61 00", "0e 00 00 04 01 02 61 00"
    sparse = read_with(reader, batch_of(first + second, count=2, last_offset_delta=2))
    assert [record.offset for record in sparse] == [1, 2]
    for body in (first + first, second + first):
        with pytest.raises(CorruptRecords, match="rise"):
            read_with(reader, batch_of(body, count=2, last_offset_delta=2))


@TWINS
def test_a_timestamp_beyond_64_bits(reader: ModuleType) -> None:
    later = "0e 00 02 00 01 02 61 00"
    assert read_with(reader, batch_of(later, base_timestamp=5))[0].timestamp_ms == 6
    with pytest.raises(CorruptRecords, match="timestamp"):
        read_with(reader, batch_of(later, base_timestamp=INT64_MAX))


@TWINS
def test_a_header_key_that_is_not_utf8_is_forgiven(reader: ModuleType) -> None:
    batch = batch_of("14 00 00 00 01 02 61 02 02 ff 01")
    assert read_with(reader, batch) == [Record(0, -1, None, b"a", (("\ufffd", None),))]
    header, body = open_batch(batch, 1 << 20)
    builder = reader.ColumnsBuilder()
    builder.append(header, body, 0)
    assert bytes(builder.finish().headers.keys.data).decode() == "\ufffd"


@TWINS
def test_a_builder_that_failed_stays_so(reader: ModuleType) -> None:
    builder = reader.ColumnsBuilder()
    header, body = open_batch(batch_of(MALFORMED["null header key"]), 1 << 20)
    with pytest.raises(CorruptRecords):
        builder.append(header, body, 0)
    with pytest.raises(RuntimeError):
        builder.append(header, body, 0)
    with pytest.raises(RuntimeError):
        builder.finish()


def test_the_envelope_is_checked() -> None:
    good = batch_of(GOOD)
    with pytest.raises(CorruptRecords, match="shorter than its header"):
        decode_batch(good[: HEADER_BYTES - 1])
    with pytest.raises(CorruptRecords, match="its length field says"):
        decode_batch(good + b"\x00")
    with pytest.raises(CorruptRecords, match="checksum"):
        decode_batch(good[:-1] + b"\x01")
    with pytest.raises(CorruptRecords, match="negative number"):
        decode_batch(batch_of(GOOD, count=-1))
    with pytest.raises(CorruptRecords, match="negative number"):
        decode_batch(batch_of(GOOD, last_offset_delta=-1))
    with pytest.raises(CorruptRecords, match="beyond 64 bits"):
        decode_batch(batch_of(GOOD, base_offset=INT64_MAX, last_offset_delta=1))
    with pytest.raises(CorruptRecords, match="cannot hold"):
        decode_batch(batch_of(GOOD, count=2**31 - 1, last_offset_delta=2**31 - 2))
    with pytest.raises(CorruptRecords, match="unknown compression type 5"):
        decode_batch(batch_of(GOOD, attributes=5))
    assert decode_batch(good[:17] + bytes(4) + good[21:], check_crc=False) == decode_batch(good)


@pytest.mark.parametrize("codec", Compression)
def test_the_limit_is_for_what_was_compressed(codec: Compression) -> None:
    records = [Record(0, 1, None, bytes(100_000))]
    batch = encode_batch(records, compression=codec)
    assert decode_batch(batch, 100_100) == records
    with pytest.raises(TooLarge):
        decode_batch(batch, 100_000)

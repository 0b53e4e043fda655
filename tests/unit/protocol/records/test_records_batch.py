"""The batch header byte for byte, the fields that a log or a producer sets, and batches in a larger buffer."""

from __future__ import annotations

import pytest

from ottla.protocol.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    checksum,
    crc_matches,
    read_header,
    set_log_append_time,
    set_producer,
    sign,
    split_batches,
    stamp,
    write_header,
)
from ottla.protocol.records.codecs import Compression
from ottla.protocol.records.errors import CorruptRecords
from ottla.protocol.records.record import Record, decode_batch, encode_batch

# One hand-made record: 12 bytes of body (zigzag 24), no attributes, both deltas 0, key "key", value "val", no headers.
RECORD = bytes.fromhex("18 00 00 00 06 6b6579 06 76616c 00")
HEADER = bytes.fromhex(
    "0000000000000102"  # base offset 258
    "0000003e"  # length 62: 49 of the header after this field, 13 of the record
    "00000007"  # leader epoch
    "02"  # magic
    "00000000"  # checksum, filled in later
    "0033"  # attributes: lz4 | transactional | control
    "00000000"  # last offset delta
    "0000018bcfe56800"  # first timestamp 1700000000000
    "0000018bcfe56805"  # maximum timestamp
    "0000000000000fa0"  # producer id 4000
    "0003"  # producer epoch
    "00000011"  # base sequence 17
    "00000001"  # one record
)


def test_the_header_by_hand() -> None:
    assert len(HEADER) == HEADER_BYTES
    header = read_header(HEADER)
    assert header == BatchHeader(258, 62, 7, 2, 0, 0x33, 0, 1700000000000, 1700000000005, 4000, 3, 17, 1)
    assert header.size_bytes == len(HEADER) + len(RECORD)
    assert header.compression == Compression.lz4
    assert header.is_transactional
    assert header.is_control
    assert not header.is_log_append_time
    again = bytearray(HEADER_BYTES)
    write_header(again, header)
    assert again == HEADER


def test_a_batch_by_hand() -> None:
    plain = bytearray(HEADER + RECORD)
    plain[21:23] = b"\x00\x00"
    sign(plain)
    assert crc_matches(plain, read_header(plain))
    assert decode_batch(plain) == [Record(258, 1700000000000, b"key", b"val", ())]


def test_the_checksum_is_castagnolis_over_what_follows_it() -> None:
    """The check value of CRC-32C is that of the digits 1 to 9."""
    assert checksum(bytes(21) + b"123456789") == 0xE3069283


def test_offset_and_epoch_are_not_signed() -> None:
    batch = encode_batch([Record(0, 5, b"k", b"v")])
    crc = read_header(batch).crc
    stamp(batch, 1000, 9)
    header = read_header(batch)
    assert (header.base_offset, header.leader_epoch, header.crc) == (1000, 9, crc)
    assert decode_batch(batch) == [Record(1000, 5, b"k", b"v")]


def test_the_producer_is_signed_again() -> None:
    batch = encode_batch([Record(0, 5, b"k", b"v")])
    set_producer(batch, 77, 2, 2**31 - 1)
    header = read_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 2, 2**31 - 1)
    assert decode_batch(batch) == [Record(0, 5, b"k", b"v")]


def test_the_log_append_time_counts_for_all_records() -> None:
    batch = encode_batch([Record(0, 5, b"k", None), Record(1, 7, b"l", None)])
    set_log_append_time(batch, read_header(batch), 99)
    assert [record.timestamp_ms for record in decode_batch(batch)] == [99, 99]


def blob() -> bytes:
    return b"".join(encode_batch([Record(base, base, b"k", b"v" * base)], base_offset=base) for base in range(5))


def test_split_yields_whole_batches() -> None:
    batches = list(split_batches(blob()))
    assert [batch.header.base_offset for batch in batches] == [0, 1, 2, 3, 4]
    assert b"".join(batch.data for batch in batches) == blob()
    assert list(split_batches(b"")) == []


def test_split_leaves_out_what_was_cut() -> None:
    whole = blob()
    ends = [0]
    for batch in split_batches(whole):
        ends.append(ends[-1] + len(batch.data))
    for size in range(len(whole)):
        assert len(list(split_batches(whole[:size]))) == max(n for n, end in enumerate(ends) if end <= size)


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 48])
def test_split_refuses_an_impossible_length(length: int) -> None:
    batch = encode_batch([Record(0, 5, b"k", b"v")])
    batch[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptRecords, match="smaller than its header"):
        list(split_batches(batch))


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_split_refuses_other_formats(magic: int) -> None:
    batch = encode_batch([Record(0, 5, b"k", b"v")])
    batch[16] = magic
    with pytest.raises(CorruptRecords, match="message format"):
        list(split_batches(batch))

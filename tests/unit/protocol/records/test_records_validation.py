"""The broker's validation of a batch's content."""

from __future__ import annotations

import pytest

from ottla.protocol.records.batch import crc_matches, read_header, stamp
from ottla.protocol.records.codecs import Compression
from ottla.protocol.records.errors import CorruptRecords, TooLarge
from ottla.protocol.records.record import Record, decode_batch, encode_batch
from ottla.protocol.records.validation import first_at_or_after, max_timestamp_record, null_key_in, recompress

TIMES = [Record(offset, time, b"k", b"v" * 50) for offset, time in enumerate([10, 30, 20, 30, 5])]
CODECS = pytest.mark.parametrize("codec", Compression)


@CODECS
def test_null_keys_are_found(codec: Compression) -> None:
    assert not null_key_in(encode_batch(TIMES, compression=codec))
    assert null_key_in(encode_batch([*TIMES, Record(5, 0, None, b"v")], compression=codec))
    assert not null_key_in(encode_batch([Record(0, 0, b"", None)], compression=codec)), "empty is not null"


@CODECS
def test_the_first_record_that_is_late_enough(codec: Compression) -> None:
    batch = encode_batch(TIMES, compression=codec)
    stamp(batch, 100, 0)
    assert first_at_or_after(batch, 0) == (10, 100)
    assert first_at_or_after(batch, 10) == (10, 100)
    assert first_at_or_after(batch, 11) == (30, 101)
    assert first_at_or_after(batch, 30) == (30, 101)
    assert first_at_or_after(batch, 31) is None


@CODECS
def test_the_first_record_that_is_late_enough_from_an_offset_on(codec: Compression) -> None:
    """A log may start in the middle of a batch. Records before its start do not count, nor do their timestamps."""
    batch = encode_batch([Record(0, 50, None, b"a"), Record(1, 10, None, b"b"), Record(2, 40, None, b"c")])
    stamp(batch, 100, 0)
    assert first_at_or_after(batch, 0, from_offset=101) == (10, 101)
    assert first_at_or_after(batch, 20, from_offset=101) == (40, 102)
    assert first_at_or_after(batch, 45, from_offset=101) is None


@CODECS
def test_the_latest_record_is_the_first_of_equals(codec: Compression) -> None:
    assert max_timestamp_record(encode_batch(TIMES, compression=codec)) == (30, 1)


def test_with_log_append_time_all_records_are_as_late() -> None:
    batch = encode_batch(TIMES, append_time_ms=500)
    assert first_at_or_after(batch, 400) == (500, 0)
    assert first_at_or_after(batch, 400, from_offset=1) == (500, 1)
    assert first_at_or_after(batch, 501) is None
    assert max_timestamp_record(batch) == (500, 0)


def test_an_empty_batch_has_no_record() -> None:
    batch = encode_batch([], last_offset_delta=4)
    assert max_timestamp_record(batch) is None
    assert first_at_or_after(batch, 0) is None
    assert not null_key_in(batch)
    assert decode_batch(recompress(batch, Compression.gzip)) == []


@CODECS
@pytest.mark.parametrize("wanted", Compression)
def test_recompressing_changes_only_the_codec(codec: Compression, wanted: Compression) -> None:
    batch = encode_batch(
        TIMES,
        base_offset=0,
        compression=codec,
        producer_id=9,
        producer_epoch=3,
        base_sequence=40,
        transactional=True,
        append_time_ms=77,
        last_offset_delta=6,
    )
    stamp(batch, 1000, 12)
    changed = recompress(batch, wanted)
    before, after = read_header(batch), read_header(changed)
    assert after.compression == wanted
    assert crc_matches(changed, after)
    assert after.size_bytes == len(changed)
    kept = before._replace(batch_length=after.batch_length, crc=after.crc, attributes=after.attributes)
    assert after == kept
    assert after.attributes & ~7 == before.attributes & ~7
    assert decode_batch(changed) == decode_batch(batch)


def test_recompressing_keeps_what_it_does_not_understand() -> None:
    """A header key that is not UTF-8 and an undefined record attribute stay unchanged."""
    batch = encode_batch([Record(0, 0, b"k", b"v", (("?", b""),))])
    at = batch.index(b"?")
    batch[at] = 0xFF
    batch[62] = 0x55
    assert bytes(recompress(recompress(batch, Compression.zstd), Compression.none))[61:] == bytes(batch)[61:]


@CODECS
def test_damage_and_bombs(codec: Compression) -> None:
    batch = encode_batch(TIMES, compression=codec)
    for look in (null_key_in, max_timestamp_record):
        with pytest.raises(TooLarge):
            look(batch, 100)
    with pytest.raises(TooLarge):
        recompress(batch, Compression.gzip, 100)
    with pytest.raises(TooLarge):
        first_at_or_after(batch, 0, 100)
    damaged = encode_batch(TIMES)
    damaged[61] += 2
    with pytest.raises(CorruptRecords):
        recompress(damaged, codec)

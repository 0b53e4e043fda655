"""Validation of batches before they are appended, error by error, and the few batches that are changed."""

from __future__ import annotations

from struct import pack_into

import pytest

from ottla.broker.partition.admission import admit
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.topic_config import TopicConfig
from ottla.protocol.records.batch import BatchHeader, crc_matches, read_header, set_log_append_time, sign
from ottla.protocol.records.codecs import Compression
from ottla.protocol.records.record import Record, decode_batch, encode_batch
from tests.support.sim_logs import config_of

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def records(count: int = 3, *, key: bytes | None = b"key", timestamp_ms: int = NOW_MS) -> list[Record]:
    return [Record(i, timestamp_ms + i, key, b"value" * 20, (("h", b"x"),)) for i in range(count)]


def batch(**options: int) -> bytearray:
    return encode_batch(records(), **options)  # type: ignore[arg-type]  # the numeric options of encode_batch


def changed(at: int, layout: str, value: int, *, signed: bool = True) -> bytearray:
    """Returns a batch with one header field changed and a matching checksum."""
    data = batch()
    pack_into(layout, data, at, value)
    if signed:
        sign(data)
    return data


def admitted(data: bytearray, config: TopicConfig | None = None) -> tuple[BatchHeader, bytes]:
    outcome = admit(memoryview(data), config or config_of(), NOW_MS)
    assert not isinstance(outcome, Refused), outcome
    header, view = outcome
    assert read_header(view) == header
    assert crc_matches(view, header)
    return header, bytes(view)


def refused(data: bytearray | None, config: TopicConfig | None = None) -> ErrorCode:
    outcome = admit(memoryview(data) if data is not None else None, config or config_of(), NOW_MS)
    assert isinstance(outcome, Refused)
    assert outcome.message
    return outcome.error


# -- errors --------------------------------------------------------------------------------------------------------


def test_a_batch_goes_in_as_it_came() -> None:
    for codec in Compression:
        data = batch(compression=codec)
        assert admitted(data)[1] == data


def test_no_records() -> None:
    assert refused(None) is ErrorCode.invalid_record
    assert refused(bytearray()) is ErrorCode.invalid_record
    assert refused(batch()[:60]) is ErrorCode.invalid_record


def test_exactly_one_batch() -> None:
    assert refused(batch() + batch()) is ErrorCode.invalid_record


@pytest.mark.parametrize("length", [0, -1, 48, 2**31 - 1])
def test_a_length_that_is_not_the_size(length: int) -> None:
    assert refused(changed(8, ">i", length)) is ErrorCode.corrupt_message


def test_a_cut_batch() -> None:
    assert refused(batch()[:-1]) is ErrorCode.corrupt_message


@pytest.mark.parametrize(
    ("magic", "error"),
    [
        (0, ErrorCode.unsupported_for_message_format),
        (1, ErrorCode.unsupported_for_message_format),
        (3, ErrorCode.corrupt_message),
        (-1, ErrorCode.corrupt_message),
    ],
)
def test_other_formats(magic: int, error: ErrorCode) -> None:
    assert refused(changed(16, ">b", magic)) is error


def test_every_flipped_bit_under_the_checksum() -> None:
    whole = batch()
    for at in range(17, len(whole)):
        data = bytearray(whole)
        data[at] ^= 0x10
        assert isinstance(admit(memoryview(data), config_of(), NOW_MS), Refused), at


def test_a_batch_that_is_too_large() -> None:
    data = batch()
    assert refused(data, config_of(max_message_bytes=str(len(data) - 1))) is ErrorCode.message_too_large
    assert admitted(data, config_of(max_message_bytes=str(len(data))))


@pytest.mark.parametrize(("delta", "count"), [(2, 4), (3, 3), (-1, 0), (-5, -4), (0, 3)])
def test_offsets_that_do_not_agree_with_the_count(delta: int, count: int) -> None:
    data = batch()
    pack_into(">i", data, 23, delta)
    pack_into(">i", data, 57, count)
    sign(data)
    assert refused(data) is ErrorCode.invalid_record


def test_control_batches_are_the_brokers() -> None:
    assert refused(batch(control=True)) is ErrorCode.invalid_record


def test_a_transactional_batch_has_a_producer() -> None:
    assert refused(batch(transactional=True)) is ErrorCode.invalid_record


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_that_nobody_knows(codec: int) -> None:
    assert refused(changed(21, ">h", codec)) is ErrorCode.unsupported_compression_type


@pytest.mark.parametrize(("epoch", "sequence"), [(-1, 0), (0, -1), (-1, -1)])
def test_a_producer_without_epoch_or_sequence(epoch: int, sequence: int) -> None:
    assert refused(batch(producer_id=7, producer_epoch=epoch, base_sequence=sequence)) is ErrorCode.invalid_record


# -- timestamps ----------------------------------------------------------------------------------------------------


def test_a_timestamp_too_far_ahead() -> None:
    config = config_of(message_timestamp_after_max_ms=str(HOUR_MS))
    assert admitted(encode_batch(records(timestamp_ms=NOW_MS + HOUR_MS - 2)), config)
    assert refused(encode_batch(records(timestamp_ms=NOW_MS + HOUR_MS)), config) is ErrorCode.invalid_timestamp


def test_a_timestamp_too_far_back() -> None:
    config = config_of(message_timestamp_before_max_ms=str(HOUR_MS))
    assert admitted(encode_batch(records(timestamp_ms=NOW_MS - HOUR_MS)), config)
    assert refused(encode_batch(records(timestamp_ms=NOW_MS - HOUR_MS - 1)), config) is ErrorCode.invalid_timestamp


def test_no_timestamp_is_none_that_is_out_of_range() -> None:
    config = config_of(message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000")
    data = encode_batch([Record(0, -1, b"k", b"v", ())])
    assert admitted(data, config)


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_the_time_of_the_append_is_not_the_producers_to_say(timestamp_type: str) -> None:
    data = batch(append_time_ms=NOW_MS)
    assert refused(data, config_of(message_timestamp_type=timestamp_type)) is ErrorCode.invalid_timestamp


@pytest.mark.parametrize("codec", Compression)
def test_log_append_time_is_stamped_and_signed(codec: Compression) -> None:
    data = encode_batch(records(timestamp_ms=5), compression=codec, producer_id=7, producer_epoch=2, base_sequence=9)
    config = config_of(message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms="1000")
    header, stored = admitted(bytearray(data), config)
    assert header.is_log_append_time
    assert header.max_timestamp == NOW_MS
    assert {record.timestamp_ms for record in decode_batch(stored)} == {NOW_MS}
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 9)
    assert stored[61:] == data[61:], "the records stay as they came"
    assert stored == bytes_stamped(data)


def bytes_stamped(data: bytearray) -> bytes:
    twin = bytearray(data)
    set_log_append_time(twin, read_header(twin), NOW_MS)
    return bytes(twin)


# -- batches whose records are checked ---------------------------------------------------------------------------


@pytest.mark.parametrize("codec", Compression)
def test_a_compacted_topic_takes_no_null_keys(codec: Compression) -> None:
    config = config_of(cleanup_policy="compact")
    good = encode_batch(records(), compression=codec)
    bad = encode_batch([*records(2), Record(2, NOW_MS, None, b"v", ())], compression=codec)
    assert admitted(bytearray(good), config)[1] == good
    assert refused(bad, config) is ErrorCode.invalid_record
    assert refused(bad, config_of(cleanup_policy="compact,delete")) is ErrorCode.invalid_record
    assert admitted(bad, config_of(cleanup_policy="delete"))


@pytest.mark.parametrize("came", Compression)
@pytest.mark.parametrize("stored_as", ["uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"])
def test_a_topics_codec_is_what_is_stored(came: Compression, stored_as: str) -> None:
    data = encode_batch(records(), compression=came, producer_id=7, producer_epoch=2, base_sequence=9)
    before = read_header(data)
    header, stored = admitted(bytearray(data), config_of(compression_type=stored_as))
    wanted = {"uncompressed": Compression.none, "producer": came}.get(stored_as)
    assert header.compression == (Compression[stored_as] if wanted is None else wanted)
    assert decode_batch(stored) == records()
    kept = ["producer_id", "producer_epoch", "base_sequence", "record_count", "last_offset_delta", "base_timestamp"]
    assert [getattr(header, name) for name in kept] == [getattr(before, name) for name in kept]
    if header.compression == came:
        assert stored == data


def test_records_that_are_not_what_they_say_are_found_only_where_they_are_opened() -> None:
    data = encode_batch(records(), compression=Compression.gzip)
    data[90] ^= 0xFF
    sign(data)
    assert admitted(bytearray(data))
    assert refused(bytearray(data), config_of(compression_type="zstd")) is ErrorCode.corrupt_message
    assert refused(bytearray(data), config_of(cleanup_policy="compact")) is ErrorCode.corrupt_message


def test_a_batch_that_grows_too_large_in_the_topics_codec() -> None:
    data = encode_batch([Record(0, NOW_MS, b"k", bytes(50_000), ())], compression=Compression.zstd)
    config = config_of(compression_type="uncompressed", max_message_bytes="10000")
    assert len(data) < 10_000
    assert refused(data, config) is ErrorCode.message_too_large


@pytest.mark.parametrize("settings", [{"compression_type": "lz4"}, {"cleanup_policy": "compact"}])
def test_a_compression_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    monkeypatch.setattr("ottla.broker.partition.admission.DECOMPRESSED_BYTES_MAX", 100_000)
    data = encode_batch([Record(0, NOW_MS, b"k", bytes(200_000), ())], compression=Compression.zstd)
    assert len(data) < 1000
    assert refused(data, config_of(**settings)) is ErrorCode.message_too_large


# -- invalid records that are reported -----------------------------------------------------------------------------


def rejection(data: bytearray, config: TopicConfig) -> Refused:
    outcome = admit(memoryview(data), config, NOW_MS)
    assert isinstance(outcome, Refused)
    return outcome


@pytest.mark.parametrize("codec", Compression)
def test_every_record_without_a_key_is_named(codec: Compression) -> None:
    keys = [b"k" if index % 3 else None for index in range(20)]
    data = encode_batch([Record(i, NOW_MS, key, b"v", ()) for i, key in enumerate(keys)], compression=codec)
    outcome = rejection(data, config_of(cleanup_policy="compact"))
    assert [error.batch_index for error in outcome.record_errors] == [0, 3, 6, 9, 12, 15, 18]
    assert "7 of 20" in (outcome.message or "")


def test_a_batch_of_too_many_records_is_rejected_without_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_batch([Record(i, NOW_MS, None, b"v", ()) for i in range(4)])
    monkeypatch.setattr("ottla.broker.partition.invalid_records.LISTED_RECORDS_MAX", 3)
    outcome = rejection(data, config_of(cleanup_policy="compact"))
    assert (outcome.error, outcome.record_errors) == (ErrorCode.invalid_record, ())


def test_a_maximum_timestamp_that_no_record_has() -> None:
    outcome = rejection(changed(35, ">q", NOW_MS + 1000 * HOUR_MS), config_of())
    assert (outcome.error, outcome.record_errors) == (ErrorCode.invalid_timestamp, ())


def test_records_out_of_time_that_are_not_what_they_say() -> None:
    data = encode_batch(records(timestamp_ms=NOW_MS + 1000 * HOUR_MS), compression=Compression.gzip)
    data[90] ^= 0xFF
    sign(data)
    assert rejection(data, config_of()).error is ErrorCode.corrupt_message


def test_records_in_a_topic_that_stamps_them_are_never_out_of_time() -> None:
    config = config_of(cleanup_policy="compact", message_timestamp_type="LogAppendTime")
    data = encode_batch([Record(0, NOW_MS + 1000 * HOUR_MS, b"k", b"v", ()), Record(1, NOW_MS, None, b"v", ())])
    outcome = rejection(data, config)
    assert (outcome.error, [error.batch_index for error in outcome.record_errors]) == (ErrorCode.invalid_record, [1])

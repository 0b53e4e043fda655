"""Codecs on arbitrary input: round trips, other libraries' encoders, and damage that raises only the expected error."""

from __future__ import annotations

import pytest
from aiokafka import codec as aiokafka_codec
from hypothesis import given
from hypothesis import strategies as st
from kafka import codec as kafka_python_codec

from ottla.protocol.records.codecs import Compression, compress, decompress
from ottla.protocol.records.errors import CorruptRecords, TooLarge

CODECS = pytest.mark.parametrize("codec", Compression)
COMPRESSED = pytest.mark.parametrize("codec", [codec for codec in Compression if codec])

repetitive = st.builds(lambda part, times: part * times, st.binary(max_size=50), st.integers(0, 3000))
payloads = st.one_of(st.binary(max_size=2000), repetitive)

AIOKAFKA = {
    Compression.gzip: (aiokafka_codec.gzip_encode, aiokafka_codec.gzip_decode),
    Compression.snappy: (aiokafka_codec.snappy_encode, aiokafka_codec.snappy_decode),
    Compression.lz4: (aiokafka_codec.lz4_encode, aiokafka_codec.lz4_decode),
    Compression.zstd: (aiokafka_codec.zstd_encode, aiokafka_codec.zstd_decode),
}
KAFKA_PYTHON = {
    Compression.gzip: (kafka_python_codec.gzip_encode, kafka_python_codec.gzip_decode),
    Compression.lz4: (kafka_python_codec.lz4_encode, kafka_python_codec.lz4_decode),
}


@CODECS
@given(data=payloads)
def test_round_trip_with_a_limit_that_just_fits(codec: Compression, data: bytes) -> None:
    packed = compress(codec, data)
    assert bytes(decompress(codec, packed, len(data))) == data
    if data:
        with pytest.raises(TooLarge):
            decompress(codec, packed, len(data) - 1)


@COMPRESSED
@given(parts=st.lists(payloads, min_size=1, max_size=4))
def test_frames_one_after_another(codec: Compression, parts: list[bytes]) -> None:
    packed = b"".join(bytes(compress(codec, part)) for part in parts)
    assert bytes(decompress(codec, packed, 1 << 20)) == b"".join(parts)


@pytest.mark.parametrize("codec", AIOKAFKA)
@given(data=payloads)
def test_aiokafka_in_both_directions(codec: Compression, data: bytes) -> None:
    encode, decode = AIOKAFKA[codec]
    assert bytes(decompress(codec, encode(data), len(data))) == data
    if data:  # its reader takes the header of an empty xerial stream for a raw block
        assert decode(bytes(compress(codec, data))) == data


@pytest.mark.parametrize("codec", KAFKA_PYTHON)
@given(data=payloads)
def test_kafka_python_in_both_directions(codec: Compression, data: bytes) -> None:
    encode, decode = KAFKA_PYTHON[codec]
    assert bytes(decompress(codec, encode(data), len(data))) == data
    assert decode(bytes(compress(codec, data))) == data


@COMPRESSED
@given(data=st.binary(max_size=300))
def test_garbage_is_refused_or_read(codec: Compression, data: bytes) -> None:
    try:
        output = decompress(codec, data, 100_000)
    except CorruptRecords:
        return
    assert len(output) <= 100_000


@COMPRESSED
@given(data=payloads, at=st.integers(0, 1 << 16), byte=st.integers(0, 255), cut=st.integers(0, 40))
def test_damaged_frames_are_refused_or_read(codec: Compression, data: bytes, at: int, byte: int, cut: int) -> None:
    packed = bytearray(compress(codec, data))
    packed[at % len(packed)] = byte
    try:
        output = decompress(codec, packed[: len(packed) - cut], 100_000)
    except CorruptRecords:
        return
    assert len(output) <= 100_000

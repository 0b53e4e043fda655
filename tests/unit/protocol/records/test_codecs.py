"""Each codec by itself: the formats it must read, and that no input makes it exceed the memory limit."""

from __future__ import annotations

import gzip
import zlib

import cramjam
import lz4.frame
import pytest
from aiokafka import codec as aiokafka_codec
from kafka import codec as kafka_python_codec

from ottla.protocol.records.codecs import XERIAL_HEADER, Compression, compress, decompress, topic_compression
from ottla.protocol.records.errors import CorruptRecords, TooLarge

COMPRESSED = [Compression.gzip, Compression.snappy, Compression.lz4, Compression.zstd]
TEXT = b"".join(b"line %d of a text that repeats itself\n" % number for number in range(5000))


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("size", [0, 1, 1000, 32 * 1024, 32 * 1024 + 1, len(TEXT)])
def test_round_trip(codec: Compression, size: int) -> None:
    packed = compress(codec, TEXT[:size])
    assert bytes(decompress(codec, packed, size)) == TEXT[:size]
    assert bytes(decompress(codec, memoryview(bytes(packed)), 1 << 30)) == TEXT[:size]


@pytest.mark.parametrize("codec", COMPRESSED)
def test_reads_several_frames(codec: Compression) -> None:
    frames = b"".join(bytes(compress(codec, part)) for part in (b"one, ", b"", b"two, ", TEXT))
    assert bytes(decompress(codec, frames, 1 << 20)) == b"one, two, " + TEXT


@pytest.mark.parametrize("codec", Compression)
def test_never_exceeds_the_limit(codec: Compression) -> None:
    packed = compress(codec, TEXT)
    for limit_bytes in (0, 1, 5000, len(TEXT) - 1):
        with pytest.raises(TooLarge):
            decompress(codec, packed, limit_bytes)


def zeros(megabytes: int) -> dict[Compression, bytes]:
    """The same long run of zeros in each codec, compressed piece by piece."""
    piece = bytes(1 << 20)
    deflate = zlib.compressobj(9, wbits=31)
    frame = lz4.frame.LZ4FrameCompressor()
    block = bytes(cramjam.snappy.compress_raw(piece))
    return {
        Compression.gzip: b"".join(deflate.compress(piece) for _ in range(megabytes)) + deflate.flush(),
        Compression.snappy: XERIAL_HEADER + (len(block).to_bytes(4, "big") + block) * megabytes,
        Compression.lz4: frame.begin() + b"".join(frame.compress(piece) for _ in range(megabytes)) + frame.flush(),
        Compression.zstd: bytes(cramjam.zstd.compress(piece)) * megabytes,
    }


def test_a_bomb_is_stopped_at_the_limit() -> None:
    for codec, bomb in zeros(megabytes=256).items():
        with pytest.raises(TooLarge, match="limit of 2097152 bytes"):
            decompress(codec, bomb, 2 << 20)


def test_a_snappy_block_that_lies_about_its_size_takes_no_memory() -> None:
    claims_a_gigabyte = b"\x80\x80\x80\x80\x04" + b"\x00a"
    with pytest.raises(CorruptRecords, match="cannot hold"):
        decompress(Compression.snappy, claims_a_gigabyte, 2 << 30)


def test_zstd_without_a_content_size() -> None:
    stream = cramjam.zstd.Compressor(3)
    stream.compress(TEXT)
    packed = bytes(stream.finish())
    assert packed[4] & 0xE0 == 0, "neither a content size nor a single segment"
    assert bytes(decompress(Compression.zstd, packed, len(TEXT))) == TEXT


def test_a_zstd_block_may_be_raw() -> None:
    """A hand-made frame: magic, no content size, a window of 1 KB, one last raw block of three bytes."""
    frame = bytes.fromhex("28b52ffd 00 00") + (1 | 3 << 3).to_bytes(3, "little") + b"abc"
    assert bytes(decompress(Compression.zstd, frame, 3)) == b"abc"


def test_snappy_raw_and_framed() -> None:
    raw = bytes(cramjam.snappy.compress_raw(TEXT))
    framed = bytes(compress(Compression.snappy, TEXT))
    assert framed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    for packed in (raw, framed, framed + framed[16:], XERIAL_HEADER[:8] + bytes(8) + framed[16:]):
        assert bytes(decompress(Compression.snappy, packed, 1 << 20)).startswith(TEXT)


def test_lz4_with_linked_blocks_a_content_size_and_checksums() -> None:
    packed = lz4.frame.compress(
        TEXT, block_linked=True, store_size=True, content_checksum=True, block_checksum=True, compression_level=9
    )
    assert bytes(decompress(Compression.lz4, packed, len(TEXT))) == TEXT


def test_a_wrong_lz4_checksum_is_found() -> None:
    packed = bytearray(lz4.frame.compress(TEXT, content_checksum=True))
    packed[-1] ^= 1
    with pytest.raises(CorruptRecords):
        decompress(Compression.lz4, packed, len(TEXT))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_damaged_data_is_refused(codec: Compression) -> None:
    packed = bytes(compress(codec, TEXT))
    for damaged in (b"", b"\x05", b"garbage garbage garbage", packed[:-1], packed[:20], packed[:4]):
        with pytest.raises(CorruptRecords):
            decompress(codec, damaged, 1 << 20)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_garbage_after_the_last_frame_is_refused(codec: Compression) -> None:
    with pytest.raises(CorruptRecords):
        decompress(codec, bytes(compress(codec, TEXT)) + b"garbage", 1 << 20)


@pytest.mark.parametrize(
    "tail",
    [b"\x00", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x05ab", b"\x82SNAPPY\x00"],
    ids=["cut", "empty", "negative", "huge", "too long", "half a header"],
)
def test_damaged_xerial_blocks_are_refused(tail: bytes) -> None:
    with pytest.raises(CorruptRecords):
        decompress(Compression.snappy, bytes(compress(Compression.snappy, b"good")) + tail, 1 << 20)


@pytest.mark.parametrize("codec_id", [5, 6, 7, -1])
def test_unknown_codecs(codec_id: int) -> None:
    with pytest.raises(CorruptRecords, match=f"unknown compression type {codec_id}"):
        decompress(codec_id, b"", 10)
    with pytest.raises(ValueError, match="unknown compression type"):
        compress(codec_id, b"")


def test_levels_reach_the_codec() -> None:
    for codec in (Compression.gzip, Compression.lz4, Compression.zstd):
        assert len(compress(codec, TEXT, 1)) != len(compress(codec, TEXT, 9))


def test_the_topic_chooses_the_codec() -> None:
    assert topic_compression("producer", Compression.lz4) == Compression.lz4
    assert topic_compression("uncompressed", Compression.lz4) == Compression.none
    assert topic_compression("zstd", Compression.lz4) == Compression.zstd


def test_what_aiokafka_encodes() -> None:
    encoders = {
        Compression.gzip: aiokafka_codec.gzip_encode,
        Compression.snappy: aiokafka_codec.snappy_encode,
        Compression.lz4: aiokafka_codec.lz4_encode,
        Compression.zstd: aiokafka_codec.zstd_encode,
    }
    for codec, encode in encoders.items():
        assert bytes(decompress(codec, encode(TEXT), len(TEXT))) == TEXT
    raw = aiokafka_codec.snappy_encode(TEXT, xerial_compatible=False)
    assert bytes(decompress(Compression.snappy, raw, len(TEXT))) == TEXT


def test_what_aiokafka_decodes() -> None:
    decoders = {
        Compression.gzip: aiokafka_codec.gzip_decode,
        Compression.snappy: aiokafka_codec.snappy_decode,
        Compression.lz4: aiokafka_codec.lz4_decode,
        Compression.zstd: aiokafka_codec.zstd_decode,
    }
    for codec, decode in decoders.items():
        assert decode(bytes(compress(codec, TEXT))) == TEXT


def test_kafka_python_in_both_directions() -> None:
    """Its snappy and zstd need optional packages."""
    assert bytes(decompress(Compression.lz4, kafka_python_codec.lz4_encode(TEXT), len(TEXT))) == TEXT
    assert bytes(decompress(Compression.gzip, kafka_python_codec.gzip_encode(TEXT), len(TEXT))) == TEXT
    assert kafka_python_codec.lz4_decode(bytes(compress(Compression.lz4, TEXT))) == TEXT
    assert kafka_python_codec.gzip_decode(bytes(compress(Compression.gzip, TEXT))) == TEXT
    assert gzip.decompress(bytes(compress(Compression.gzip, TEXT))) == TEXT

"""Compression of a batch's records: none, gzip, snappy, lz4, zstd.

Compressed data comes from the network, and a kilobyte can expand to gigabytes. The output is therefore limited while it
is produced, not checked afterwards. Every codec reads several frames one after another, as the Java client does for
gzip.

Clients differ in these formats, all of which are read here:

* snappy: the Java client writes xerial's stream (a header, then blocks with a length before each), librdkafka writes
  one raw block. We write xerial's, which every client reads.
* lz4: frames with independent blocks, because the Java client rejects linked ones.
* zstd: the Java client writes frames without a content size.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from struct import Struct

import cramjam
import lz4.frame

from ottla.protocol.records.batch import Buffer
from ottla.protocol.records.errors import CorruptRecords, TooLarge


class Compression(IntEnum):
    """The codec's number in a batch's attributes. The names are those of `compression.type`."""

    none = 0
    gzip = 1
    snappy = 2
    lz4 = 3
    zstd = 4


XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + bytes((0, 0, 0, 1, 0, 0, 0, 1))
"""The magic, the version, and the oldest version that can read it."""
XERIAL_BLOCK_BYTES = 32 * 1024

_LENGTH = Struct(">i")
_SNAPPY_RATIO_MAX = 64
"""A snappy element yields at most 64 bytes for three, so a larger claim is false and is rejected before memory is
allocated."""
_FIRST_GUESS_RATIO = 8
_FIRST_GUESS_BYTES_MIN = 4096
_GROWTH = 4
_LZ4_PIECE_BYTES_MIN = 64 * 1024
_GZIP_LEVEL = 6
_LZ4_LEVEL = 0
_ZSTD_LEVEL = 3


def topic_compression(compression_type: str, of_batch: int) -> Compression:
    """Returns the codec for a topic's `compression.type`; "producer" keeps the codec of the batch."""
    if compression_type == "producer":
        return Compression(of_batch)
    return Compression.none if compression_type == "uncompressed" else Compression[compression_type]


def compress(codec_id: int, data: Buffer, level: int | None = None) -> Buffer:
    """Compresses the data. `level` is specific to the codec; snappy has none."""
    match codec_id:
        case Compression.none:
            return data
        case Compression.gzip:
            return memoryview(cramjam.gzip.compress(data, level=_GZIP_LEVEL if level is None else level))
        case Compression.snappy:
            return _compress_xerial(memoryview(data))
        case Compression.lz4:
            lz4_level = _LZ4_LEVEL if level is None else level
            compressed: bytes = lz4.frame.compress(
                data, compression_level=lz4_level, block_linked=False, store_size=False
            )
            return compressed
        case Compression.zstd:
            return memoryview(cramjam.zstd.compress(data, level=_ZSTD_LEVEL if level is None else level))
        case _:
            raise ValueError(f"unknown compression type {codec_id}")


def decompress(codec_id: int, data: Buffer, limit_bytes: int) -> Buffer:
    """Decompresses all of `data`. Raises TooLarge if the result would exceed the limit, CorruptRecords if it is
    malformed.

    The result may share memory with `data`, because uncompressed data is not copied.
    """
    match codec_id:
        case Compression.none:
            if len(data) > limit_bytes:
                raise TooLarge(f"the records have {len(data)} bytes, more than the limit of {limit_bytes}")
            return data
        case Compression.gzip:
            return _decompress_capped(cramjam.gzip.decompress_into, "gzip", data, limit_bytes)
        case Compression.snappy:
            return _decompress_snappy(memoryview(data), limit_bytes)
        case Compression.lz4:
            return _decompress_lz4(memoryview(data), limit_bytes)
        case Compression.zstd:
            return _decompress_capped(cramjam.zstd.decompress_into, "zstd", data, limit_bytes)
        case _:
            raise CorruptRecords(f"unknown compression type {codec_id}")


def _decompress_capped(into: Callable[[Buffer, bytearray], int], name: str, data: Buffer, limit_bytes: int) -> Buffer:
    """Decompresses into a buffer that grows up to the limit. The library stops at the end of the buffer, so a
    decompression bomb costs no more."""
    capacity = min(limit_bytes, max(_FIRST_GUESS_BYTES_MIN, _FIRST_GUESS_RATIO * len(data)))
    while True:
        buffer = bytearray(capacity)
        try:
            written = into(data, buffer)
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise CorruptRecords(f"malformed {name} data: {error}") from None
            if capacity >= limit_bytes:
                raise _over_the_limit(name, limit_bytes) from None
            capacity = min(limit_bytes, capacity * _GROWTH)
        else:
            return memoryview(buffer)[:written]


def _decompress_lz4(data: memoryview, limit_bytes: int) -> Buffer:
    """Decompresses frame by frame: the library's own `decompress` returns the first frame and silently drops the
    others."""
    if not data:
        raise CorruptRecords("malformed lz4 data: empty")
    pieces: list[bytes] = []
    at, left = 0, limit_bytes
    context, inside = lz4.frame.create_decompression_context(), True
    while at < len(data):
        rest = data[at:]
        # One byte more than allowed distinguishes a frame that ends at the limit from one that continues.
        piece_bytes_max = min(left + 1, max(_LZ4_PIECE_BYTES_MIN, _FIRST_GUESS_RATIO * len(rest)))
        try:
            piece, taken, frame_ended = lz4.frame.decompress_chunk(context, rest, max_length=piece_bytes_max)
        except (RuntimeError, ValueError) as error:
            raise CorruptRecords(f"malformed lz4 data: {error}") from None
        if not taken and not piece:
            raise CorruptRecords("malformed lz4 data: no progress")
        at, left, inside = at + taken, left - len(piece), not frame_ended
        if left < 0:
            raise _over_the_limit("lz4", limit_bytes)
        pieces.append(piece)
        if frame_ended:
            context = lz4.frame.create_decompression_context()
    if inside:
        raise CorruptRecords("malformed lz4 data: the last frame is truncated")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _compress_xerial(data: memoryview) -> bytearray:
    stream = bytearray(XERIAL_HEADER)
    for at in range(0, len(data), XERIAL_BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(data[at : at + XERIAL_BLOCK_BYTES]))
        stream += _LENGTH.pack(len(block))
        stream += block
    return stream


def _decompress_snappy(data: memoryview, limit_bytes: int) -> Buffer:
    blocks = _xerial_blocks(data) if data[: len(XERIAL_MAGIC)] == XERIAL_MAGIC else [data]
    sizes = [_snappy_size(block) for block in blocks]
    if sum(sizes) > limit_bytes:
        raise _over_the_limit("snappy", limit_bytes)
    output = bytearray(sum(sizes))
    view = memoryview(output)
    at = 0
    for block, size in zip(blocks, sizes, strict=True):
        try:
            cramjam.snappy.decompress_raw_into(block, view[at : at + size])
        except cramjam.DecompressionError as error:
            raise CorruptRecords(f"malformed snappy data: {error}") from None
        at += size
    return output


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    """Returns the compressed blocks of a stream. The header may repeat where streams were concatenated."""
    blocks: list[memoryview] = []
    at = 0
    while at < len(data):
        if data[at : at + len(XERIAL_MAGIC)] == XERIAL_MAGIC:
            # Version and compatibility are ignored: some producers write them in the other byte order.
            at += len(XERIAL_HEADER)
            continue
        start = at + _LENGTH.size
        size = _LENGTH.unpack_from(data, at)[0] if start <= len(data) else -1
        if size <= 0 or start + size > len(data):
            raise CorruptRecords("malformed snappy data: a block's length is beyond the end")
        blocks.append(data[start : start + size])
        at = start + size
    if at > len(data):
        raise CorruptRecords("malformed snappy data: the header is truncated")
    return blocks


def _snappy_size(block: memoryview) -> int:
    """Returns the size that a raw block claims to hold."""
    if not block:
        raise CorruptRecords("malformed snappy data: empty")
    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise CorruptRecords(f"malformed snappy data: {error}") from None
    if size > _SNAPPY_RATIO_MAX * len(block):
        raise CorruptRecords(f"malformed snappy data: {len(block)} bytes cannot hold {size}")
    return size


def _over_the_limit(name: str, limit_bytes: int) -> TooLarge:
    return TooLarge(f"the decompressed {name} data exceeds the limit of {limit_bytes} bytes")

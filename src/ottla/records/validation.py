"""The few looks that a broker takes into a batch, which is opaque to it otherwise.

A compacted topic refuses null keys, a topic with a codec of its own stores batches in that codec, and a look-up by
time ends at a record. All take one whole batch whose checksum was verified when it arrived, and a limit for what it
may decompress to; CorruptRecords or TooLarge if it is not what it says.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.records.batch import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    Batch,
    Buffer,
    read_header,
    sign,
    write_header,
)
from ottla.records.bridge import decode_columns, scan_batch
from ottla.records.codecs import compress
from ottla.records.envelope import INT64_MIN

INSPECTED_BYTES_MAX = 256 << 20
"""Less than a client may decode: a broker holds this for every request that looks inside a batch."""


def null_key_in(batch: Buffer, limit_bytes: int = INSPECTED_BYTES_MAX) -> bool:
    _, _, found = scan_batch(batch, limit_bytes)
    return found.has_null_key


def keys_and_timestamps(batch: Buffer, limit_bytes: int = INSPECTED_BYTES_MAX) -> Iterator[tuple[bool, int]]:
    """Yields for each record whether it has a key, and its timestamp."""
    whole = Batch(read_header(batch), memoryview(batch))
    columns = decode_columns([whole], from_offset=INT64_MIN, limit_bytes=limit_bytes, check_crc=False)
    timestamps = memoryview(columns.timestamps.data).cast("q")
    validity = columns.keys.validity
    for row, timestamp_ms in enumerate(timestamps):
        yield validity is None or bool(memoryview(validity)[row >> 3] >> (row & 7) & 1), timestamp_ms


def recompress(
    batch: Buffer, codec_id: int, limit_bytes: int = INSPECTED_BYTES_MAX, level: int | None = None
) -> bytearray:
    """The same records in another codec: everything else in the header stays, only length and checksum are new."""
    header, body, _ = scan_batch(batch, limit_bytes)
    changed = bytearray(HEADER_BYTES)
    if body or header.record_count:
        changed += compress(codec_id, body, level)
    write_header(
        changed,
        header._replace(
            batch_length=len(changed) - LOG_OVERHEAD_BYTES,
            attributes=header.attributes & ~COMPRESSION_MASK | codec_id,
        ),
    )
    sign(changed)
    return changed


def first_at_or_after(
    batch: Buffer, timestamp_ms: int, limit_bytes: int = INSPECTED_BYTES_MAX
) -> tuple[int, int] | None:
    """Timestamp and offset of the first record that is not earlier; None if the batch has none."""
    _, _, found = scan_batch(batch, limit_bytes, timestamp_ms)
    return found.at_or_after


def max_timestamp_record(batch: Buffer, limit_bytes: int = INSPECTED_BYTES_MAX) -> tuple[int, int] | None:
    """Timestamp and offset of the latest record, the first of several; None if compaction left no record."""
    _, _, found = scan_batch(batch, limit_bytes)
    return found.max_timestamp

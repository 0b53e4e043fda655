"""The few operations for which a broker looks inside a batch, which is otherwise opaque to it.

A compacted topic rejects null keys, a topic with its own codec recompresses batches, and a look-up by time ends at a
record. Each function takes one complete batch, whose CRC was verified on arrival, and a limit on its decompressed size.
They raise CorruptRecords or TooLarge if the batch is not what it claims to be.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.protocol.records.batch import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    Batch,
    Buffer,
    read_header,
    sign,
    write_header,
)
from ottla.protocol.records.bridge import decode_columns, scan_batch
from ottla.protocol.records.codecs import compress
from ottla.protocol.records.envelope import INT64_MIN
from ottla.protocol.records.record import decode_batch

INSPECTED_BYTES_MAX = 256 << 20
"""Less than the limit for clients: a broker holds this much for every request that looks inside a batch."""


def null_key_in(batch: Buffer, limit_bytes: int = INSPECTED_BYTES_MAX) -> bool:
    """Reports whether a record has no key."""
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
    """Returns the same records in another codec. Only the codec, length and CRC in the header change."""
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
    batch: Buffer, timestamp_ms: int, limit_bytes: int = INSPECTED_BYTES_MAX, *, from_offset: int = 0
) -> tuple[int, int] | None:
    """Returns the timestamp and offset of the first record at or after the time and the offset; None if there is
    none."""
    _, _, found = scan_batch(batch, limit_bytes, timestamp_ms)
    if found.at_or_after is None or found.at_or_after[1] >= from_offset:
        return found.at_or_after
    # The log starts in the middle of the batch, and the records before its start are deleted.
    left = (record for record in decode_batch(batch) if record.offset >= from_offset)
    return next(((each.timestamp_ms, each.offset) for each in left if each.timestamp_ms >= timestamp_ms), None)


def max_timestamp_record(batch: Buffer, limit_bytes: int = INSPECTED_BYTES_MAX) -> tuple[int, int] | None:
    """Returns the timestamp and offset of the latest record, the first one if there are several; None if compaction
    left none."""
    _, _, found = scan_batch(batch, limit_bytes)
    return found.max_timestamp

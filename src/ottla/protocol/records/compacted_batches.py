"""Batches after compaction: with fewer records, with none, or replaced by a placeholder.

The batches of a log are contiguous before and after compaction: the offsets of removed records stay covered. A batch
that loses records keeps its first and last offset. Batches that lose all of their records become one placeholder, as
long as their leader epoch is the same: a header that covers their offsets and has no records. The last batch of an
idempotent producer stays as a header of its own, because the producer's sequence is recovered from it.

A gap in a log is therefore still damage. A follower needs only one special case: its end may lie inside a placeholder,
of which it then takes the rest.
"""

from __future__ import annotations

from ottla.protocol.records.batch import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    sign,
    write_header,
)
from ottla.protocol.records.codecs import compress

DELETE_HORIZON_BIT = 0x40
"""Attribute bit: the base timestamp says from when on the batch's tombstones may be removed (KIP-534)."""
NO_TIMESTAMP = -1
OFFSETS_MAX = 2**31 - 1
"""Maximum number of offsets that one batch can cover."""


def is_placeholder(header: BatchHeader) -> bool:
    """Returns whether the batch only fills the offsets of removed batches."""
    return header.record_count == 0 and header.producer_id < 0 and not header.is_control


def has_delete_horizon(header: BatchHeader) -> bool:
    """Returns whether the base timestamp is the time after which the batch's tombstones may be removed."""
    return bool(header.attributes & DELETE_HORIZON_BIT)


def placeholder(base_offset: int, next_offset: int, leader_epoch: int) -> bytearray:
    """Returns a batch without records that covers these offsets."""
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=HEADER_BYTES - LOG_OVERHEAD_BYTES,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=next_offset - base_offset - 1,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=0,
    )
    return _sealed(header, b"")


def emptied(header: BatchHeader) -> bytearray:
    """Returns the batch without its records, but with its producer and last sequence. Its transaction has ended, and a
    reader of the log must not wait for a marker."""
    attributes = header.attributes & ~COMPRESSION_MASK & ~DELETE_HORIZON_BIT & ~TRANSACTIONAL_BIT
    return _sealed(header._replace(attributes=attributes, record_count=0), b"")


def with_fewer_records(header: BatchHeader, records: Buffer, count: int, max_timestamp: int) -> bytearray:
    """Returns the batch with only these records, in its own codec. If the header has a new base timestamp, the records
    must be relative to it."""
    if not header.is_log_append_time:
        header = header._replace(max_timestamp=max_timestamp)
    return _sealed(header._replace(record_count=count), compress(header.compression, records))


def with_delete_horizon(header: BatchHeader, horizon_ms: int) -> BatchHeader:
    """Returns the header with this delete horizon, which takes the place of the base timestamp."""
    return header._replace(attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=horizon_ms)


def rest_of_placeholder(header: BatchHeader, from_offset: int) -> bytearray:
    """Returns the rest of a placeholder for a log that ends inside it."""
    return placeholder(from_offset, header.next_offset, header.leader_epoch)


def _sealed(header: BatchHeader, packed: Buffer) -> bytearray:
    batch = bytearray(HEADER_BYTES)
    batch += packed
    write_header(batch, header._replace(batch_length=len(batch) - LOG_OVERHEAD_BYTES))
    sign(batch)
    return batch

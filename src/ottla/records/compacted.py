"""What compaction makes of a batch: fewer records, none, or a placeholder for several that are gone.

Batches of a log follow one another without a gap, before and after: whatever is removed, its offsets stay covered. A
batch keeps its first and last offset when it loses records. Batches that lose all of them become one placeholder: a
header that covers their offsets and has no records, as long as their leader epoch is the same. The last batch of an
idempotent producer stays as a header of its own, since that is where its sequence can be read again.

So a hole in a log is damage, as ever, and a follower needs no special case but one: its end may be inside a
placeholder, of which it then takes the rest.
"""

from __future__ import annotations

from ottla.records.batch import (
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
from ottla.records.codecs import compress

DELETE_HORIZON_BIT = 0x40
"""Of the attributes: the base timestamp says from when on the batch's tombstones may be removed (KIP-534)."""
NO_TIMESTAMP = -1
OFFSETS_MAX = 2**31 - 1
"""What one batch can cover."""


def is_placeholder(header: BatchHeader) -> bool:
    return header.record_count == 0 and header.producer_id < 0 and not header.is_control


def has_delete_horizon(header: BatchHeader) -> bool:
    return bool(header.attributes & DELETE_HORIZON_BIT)


def placeholder(base_offset: int, next_offset: int, leader_epoch: int) -> bytearray:
    """A batch without records for these offsets."""
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
    """The batch without its records: who wrote it, and up to which sequence. Its transaction is over, and whoever reads
    the log anew must not wait for a marker."""
    attributes = header.attributes & ~COMPRESSION_MASK & ~DELETE_HORIZON_BIT & ~TRANSACTIONAL_BIT
    return _sealed(header._replace(attributes=attributes, record_count=0), b"")


def with_fewer_records(header: BatchHeader, records: Buffer, count: int, max_timestamp: int) -> bytearray:
    """The batch with these of its records, in its own codec. A header with another base timestamp comes with records
    that count from that."""
    if not header.is_log_append_time:
        header = header._replace(max_timestamp=max_timestamp)
    return _sealed(header._replace(record_count=count), compress(header.compression, records))


def with_delete_horizon(header: BatchHeader, horizon_ms: int) -> BatchHeader:
    return header._replace(attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=horizon_ms)


def rest_of_placeholder(header: BatchHeader, from_offset: int) -> bytearray:
    """For a log that ends inside of it."""
    return placeholder(from_offset, header.next_offset, header.leader_epoch)


def _sealed(header: BatchHeader, packed: Buffer) -> bytearray:
    batch = bytearray(HEADER_BYTES)
    batch += packed
    write_header(batch, header._replace(batch_length=len(batch) - LOG_OVERHEAD_BYTES))
    sign(batch)
    return batch

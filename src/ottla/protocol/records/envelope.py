"""The envelope of a batch's records: header, checksum and compression.

`open_batch` removes and verifies it, `seal` adds it. The compiled bridge and its pure Python version share both; they
differ only in how they read and write the records inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ottla.protocol.records.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    crc_matches,
    read_header,
    sign,
    write_header,
)
from ottla.protocol.records.codecs import Compression, compress, decompress
from ottla.protocol.records.errors import CorruptRecords

RECORD_BYTES_MIN = 7
"""The smallest record: length, attributes, two deltas, key, value and header count take at least one byte each."""
DECODED_BYTES_MAX = 1 << 30
"""Default limit on what one call may decompress, over all of its batches."""
INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)


@dataclass(frozen=True, slots=True)
class Traits:
    """The properties of a batch that its producer chooses, apart from the records."""

    compression: int = Compression.none
    level: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    control: bool = False
    log_append_time: bool = False

    @property
    def attributes(self) -> int:
        """The traits as the 16 attribute bits of a batch header."""
        return (
            self.compression
            | (TIMESTAMP_TYPE_BIT if self.log_append_time else 0)
            | (TRANSACTIONAL_BIT if self.transactional else 0)
            | (CONTROL_BIT if self.control else 0)
        )


class RecordBytes(NamedTuple):
    """Encoded records, preceded by HEADER_BYTES of room for the header, so that an uncompressed batch is never
    copied."""

    buffer: bytearray
    record_count: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int


def seal(records: RecordBytes, traits: Traits, *, base_offset: int = 0, never_larger: bool = False) -> bytearray:
    """Returns a complete batch. An uncompressed one is built in the records' own buffer.

    With `never_larger`, records that the codec cannot shrink stay uncompressed, so that the batch keeps the size that
    was calculated for it. Readers rely on the batch's own attributes.
    """
    batch = records.buffer
    attributes = traits.attributes
    if traits.compression != Compression.none:
        plain = memoryview(batch)[HEADER_BYTES:]
        packed = compress(traits.compression, plain, traits.level)
        if never_larger and len(packed) >= len(plain):
            attributes &= ~COMPRESSION_MASK
        else:
            batch = bytearray(HEADER_BYTES)
            batch += packed
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=len(batch) - LOG_OVERHEAD_BYTES,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=records.last_offset_delta,
        base_timestamp=records.base_timestamp,
        max_timestamp=records.max_timestamp,
        producer_id=traits.producer_id,
        producer_epoch=traits.producer_epoch,
        base_sequence=traits.base_sequence,
        record_count=records.record_count,
    )
    write_header(batch, header)
    sign(batch)
    return batch


def open_batch(batch: Buffer, limit_bytes: int, *, check_crc: bool = True) -> tuple[BatchHeader, Buffer]:
    """Returns the header and the decompressed records of one complete batch, verified except for the contents of the
    records."""
    if len(batch) < HEADER_BYTES:
        raise CorruptRecords(f"a batch of {len(batch)} bytes is shorter than its header")
    header = read_header(batch)
    if header.magic != MAGIC:
        raise CorruptRecords(f"message format {header.magic} is not supported, only {MAGIC}")
    if header.size_bytes != len(batch):
        raise CorruptRecords(f"a batch has {len(batch)} bytes, but its length field says {header.size_bytes}")
    if check_crc and not crc_matches(batch, header):
        raise CorruptRecords(f"the checksum of the batch at offset {header.base_offset} does not match")
    if header.record_count < 0 or header.last_offset_delta < 0:
        raise CorruptRecords("a batch has a negative number of records or offsets")
    if header.base_offset > INT64_MAX - header.last_offset_delta:
        raise CorruptRecords("a batch's last offset is beyond 64 bits")
    packed = memoryview(batch)[HEADER_BYTES:]
    if not packed and not header.record_count:
        return header, packed  # emptied by compaction, so there is nothing to decompress
    body = decompress(header.compression, packed, limit_bytes)
    if header.record_count * RECORD_BYTES_MIN > len(body):
        raise CorruptRecords(f"{len(body)} bytes cannot hold {header.record_count} records")
    return header, body

"""The header of a record batch (magic 2), and the few fields that a broker sets.

The broker treats a batch as opaque bytes: it reads these 61 bytes, verifies the CRC, sets offset and epoch (both lie
before the part that the CRC covers) and stores the rest unchanged.

    0        8        12      16     17    21           23                27         35       43
    | base   | length | leader| magic| crc | attributes | lastOffsetDelta | baseTime | maxTime |
    | offset |        | epoch |      |     |            |                 |          |         |

    43         51            53           57            61
    | producer | producer    | base       | record      | records ...
    | id       | epoch       | sequence   | count       |
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

import crc32c as _crc32c

from ottla.protocol.records.errors import CorruptRecords

HEADER_BYTES = 61
LOG_OVERHEAD_BYTES = 12
"""Size of base offset and length, which `length` does not count."""
CRC_COVERS_FROM = 21
MAGIC = 2

HEADER = Struct(">qiibIhiqqqhii")
_OFFSET = Struct(">q")
_EPOCH = Struct(">i")
_EPOCH_AT = 12
_CRC = Struct(">I")
_CRC_AT = 17
_ATTRIBUTES = Struct(">h")
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP_AT = 35
_PRODUCER = Struct(">qhi")
_PRODUCER_AT = 43

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20

Buffer = bytes | bytearray | memoryview


class BatchHeader(NamedTuple):
    """The fields of a batch header, in order."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch; `batch_length` does not count its own field and the base offset."""
        return self.batch_length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        """The offset of the last record, even if compaction has removed that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """Kafka's number of the codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        """True if `max_timestamp` is the timestamp of all records, set by the broker."""
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def is_transactional(self) -> bool:
        """True if the batch is part of a transaction, as data or as its marker."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """True if the batch contains control records (transaction markers), which clients do not see."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_producer(self) -> bool:
        """True if an idempotent or transactional producer wrote the batch."""
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record. Sequences wrap from 2^31 - 1 to 0."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


class Batch(NamedTuple):
    """One complete batch in a larger buffer."""

    header: BatchHeader
    data: memoryview


def read_header(data: Buffer, at: int = 0) -> BatchHeader:
    """Reads a header. The caller ensures that HEADER_BYTES are available."""
    return BatchHeader._make(HEADER.unpack_from(data, at))


def write_header(into: bytearray | memoryview, header: BatchHeader, at: int = 0) -> None:
    """Writes the header at position `at`, including the checksum as given; it is not computed."""
    HEADER.pack_into(into, at, *header)


def checksum(batch: Buffer) -> int:
    """Returns the CRC-32C of everything that the producer signs: from the attributes to the last record."""
    return _crc32c.crc32c(memoryview(batch)[CRC_COVERS_FROM:])


def crc_matches(batch: Buffer, header: BatchHeader) -> bool:
    """Returns whether the CRC-32C of the batch is the one in its header."""
    return checksum(batch) == header.crc


def stamp(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Sets the fields that a log assigns; the CRC covers neither."""
    _OFFSET.pack_into(batch, 0, base_offset)
    _EPOCH.pack_into(batch, _EPOCH_AT, leader_epoch)


def stamped(header: BatchHeader, base_offset: int, leader_epoch: int) -> BatchHeader:
    """Returns the header of a batch after `stamp`, more cheaply than by reading it again."""
    return _new_tuple(BatchHeader, (base_offset, header[1], leader_epoch, *header[3:]))


_new_tuple = tuple.__new__


def set_log_append_time(batch: bytearray | memoryview, header: BatchHeader, timestamp_ms: int) -> BatchHeader:
    """Marks the batch with the time of its append. The CRC covers it, so it is computed again."""
    attributes = header.attributes | TIMESTAMP_TYPE_BIT
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, attributes)
    _OFFSET.pack_into(batch, _MAX_TIMESTAMP_AT, timestamp_ms)
    crc = checksum(batch)
    _CRC.pack_into(batch, _CRC_AT, crc)
    return header._replace(attributes=attributes, max_timestamp=timestamp_ms, crc=crc)


def sign(batch: bytearray | memoryview) -> None:
    """Computes and writes the CRC of the batch."""
    _CRC.pack_into(batch, _CRC_AT, checksum(batch))


def set_producer(batch: bytearray | memoryview, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Sets the producer fields and signs the batch again, for a producer that assigns sequences when it sends."""
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    sign(batch)


def split_batches(blob: Buffer) -> Iterator[Batch]:
    """Yields the complete batches of a fetch response. A broker may truncate the last batch, which is then left out."""
    view = memoryview(blob)
    at = 0
    while len(view) - at >= HEADER_BYTES:
        header = read_header(view, at)
        if header.magic != MAGIC:
            raise CorruptRecords(f"message format {header.magic} is not supported, only {MAGIC}")
        if header.size_bytes < HEADER_BYTES:
            raise CorruptRecords(f"the length field of a batch, {header.size_bytes} bytes, is smaller than its header")
        if header.size_bytes > len(view) - at:
            return
        yield Batch(header, view[at : at + header.size_bytes])
        at += header.size_bytes

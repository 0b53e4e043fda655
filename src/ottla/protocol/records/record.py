"""Encodes and decodes single records in pure Python: the test oracle of the compiled bridge, and its fallback.

    record  => length: varint, attributes: int8, timestampDelta: varlong, offsetDelta: varint,
               key: bytes after a varint length (-1 is null), value: likewise, headers: after a varint count
    header  => key: UTF-8 after a varint length, value: bytes after a varint length (-1 is null)

Reading is strict. The whole batch is CorruptRecords if a length is below -1 or beyond the end of its record, if bytes
are left over, if a count does not fit, or if offsets do not increase within the batch's range. Only header keys that
are not UTF-8 are tolerated, as in the Java client: invalid bytes become U+FFFD.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ottla.protocol.records.batch import HEADER_BYTES, BatchHeader, Buffer
from ottla.protocol.records.codecs import Compression
from ottla.protocol.records.envelope import (
    DECODED_BYTES_MAX,
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    RecordBytes,
    Traits,
    open_batch,
    seal,
)
from ottla.protocol.records.errors import CorruptRecords, TooLarge
from ottla.protocol.records.varint import append_varint, read_varint, read_varlong, varint_size

Headers = tuple[tuple[str, bytes | None], ...]
HeaderRows = Sequence[tuple[str, bytes | None]]
EncodedHeaders = Sequence[tuple[bytes, bytes | None]]


class Record(NamedTuple):
    """One record."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def encode_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    compression: int = Compression.none,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    append_time_ms: int | None = None,
    transactional: bool = False,
    control: bool = False,
    last_offset_delta: int | None = None,
) -> bytearray:
    """Encodes one batch of these records, at their own offsets, which increase from `base_offset` on.

    `append_time_ms` makes it a batch with LogAppendTime. `last_offset_delta` preserves the range of a batch whose last
    records were compacted away.
    """
    traits = Traits(
        compression=compression,
        level=level,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
        log_append_time=append_time_ms is not None,
    )
    encoded = _encode_records(records, base_offset)
    if last_offset_delta is not None:
        encoded = encoded._replace(last_offset_delta=last_offset_delta)
    if append_time_ms is not None:
        encoded = encoded._replace(max_timestamp=append_time_ms)
    return seal(encoded, traits, base_offset=base_offset)


def _encode_records(records: Iterable[Record], base_offset: int) -> RecordBytes:
    buffer = bytearray(HEADER_BYTES)
    count, delta, base_timestamp, max_timestamp = 0, 0, -1, -1
    for offset, timestamp_ms, key, value, headers in records:
        delta = offset - base_offset
        if not count:
            base_timestamp = max_timestamp = timestamp_ms
        max_timestamp = max(max_timestamp, timestamp_ms)
        append_record(buffer, delta, timestamp_ms - base_timestamp, key, value, encode_header_keys(headers))
        count += 1
    return RecordBytes(buffer, count, delta, base_timestamp, max_timestamp)


def encode_header_keys(headers: HeaderRows) -> EncodedHeaders:
    """Returns the headers with their names as UTF-8."""
    return [(name.encode(), value) for name, value in headers]


def append_record(
    into: bytearray,
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: EncodedHeaders,
) -> None:
    """Appends one encoded record."""
    body = bytearray(1)
    append_varint(body, timestamp_delta)
    append_varint(body, offset_delta)
    _append_bytes(body, key)
    _append_bytes(body, value)
    append_varint(body, len(headers))
    for name, header_value in headers:
        _append_bytes(body, name)
        _append_bytes(body, header_value)
    append_varint(into, len(body))
    into += body


def _append_bytes(into: bytearray, data: bytes | None) -> None:
    if data is None:
        append_varint(into, -1)
        return
    append_varint(into, len(data))
    into += data


def record_size(
    offset_delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None, headers: EncodedHeaders
) -> int:
    """Returns the size that `append_record` will add, so that a record that does not fit can go into the next batch."""
    if not INT64_MIN <= timestamp_delta <= INT64_MAX:
        raise ValueError("two timestamps of a batch are further apart than 64 bits")
    size = 1 + varint_size(timestamp_delta) + varint_size(offset_delta) + _bytes_size(key) + _bytes_size(value)
    size += varint_size(len(headers))
    for name, header_value in headers:
        size += _bytes_size(name) + _bytes_size(header_value)
    if size > INT32_MAX - HEADER_BYTES:
        raise TooLarge(f"a record of {size} bytes does not fit into a batch")
    return size + varint_size(size)


def _bytes_size(data: bytes | None) -> int:
    return 1 if data is None else varint_size(len(data)) + len(data)


def decode_batch(batch: Buffer, limit_bytes: int = DECODED_BYTES_MAX, *, check_crc: bool = True) -> list[Record]:
    """Decodes one complete batch. Control batches are included: `records.control` interprets their records."""
    header, body = open_batch(batch, limit_bytes, check_crc=check_crc)
    return list(read_records(header, body))


def read_records(header: BatchHeader, body: Buffer) -> Iterator[Record]:
    """Yields the records of an opened batch. Each is checked before it is yielded, and the end after the last one."""
    at, end, previous_delta = 0, len(body), -1
    view = memoryview(body)
    for _ in range(header.record_count):
        length, at = read_varint(view, at, end)
        if not 0 <= length <= end - at:
            raise CorruptRecords("a record's length is beyond the end of its batch")
        record_end = at + length
        delta, record = _read_record(header, view, at, record_end)
        if not previous_delta < delta <= header.last_offset_delta:
            raise CorruptRecords("the offsets of a batch's records do not rise within its range")
        previous_delta, at = delta, record_end
        yield record
    if at != end:
        raise CorruptRecords(f"{end - at} bytes are left over after the last record")


def _read_record(header: BatchHeader, view: memoryview, at: int, end: int) -> tuple[int, Record]:
    if at >= end:
        raise CorruptRecords("a record has no attributes")
    timestamp_delta, at = read_varlong(view, at + 1, end)
    offset_delta, at = read_varint(view, at, end)
    key, at = _read_bytes(view, at, end)
    value, at = _read_bytes(view, at, end)
    headers, at = _read_headers(view, at, end)
    if at != end:
        raise CorruptRecords(f"a record is {end - at} bytes longer than its content")
    if header.is_log_append_time:
        timestamp_ms = header.max_timestamp
    else:
        timestamp_ms = header.base_timestamp + timestamp_delta
        if not INT64_MIN <= timestamp_ms <= INT64_MAX:
            raise CorruptRecords("a record's timestamp is beyond 64 bits")
    return offset_delta, Record(header.base_offset + offset_delta, timestamp_ms, key, value, headers)


def _read_bytes(view: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = read_varint(view, at, end)
    if length == -1:
        return None, at
    if not 0 <= length <= end - at:
        raise CorruptRecords("a key's or value's length is beyond the end of its record")
    return bytes(view[at : at + length]), at + length


def _read_headers(view: memoryview, at: int, end: int) -> tuple[Headers, int]:
    count, at = read_varint(view, at, end)
    if not 0 <= count * 2 <= end - at:
        raise CorruptRecords("a record's number of headers is beyond its end")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _read_bytes(view, at, end)
        if name is None:
            raise CorruptRecords("a header's key is null")
        value, at = _read_bytes(view, at, end)
        headers.append((name.decode(errors="replace"), value))
    return tuple(headers), at

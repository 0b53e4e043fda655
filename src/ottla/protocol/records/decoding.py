"""Decodes a batch's records to Python records or columns: the pure Python version of `_decoding`, and its test oracle.

Both have the same names and accept exactly the same bytes. Callers use `ottla.protocol.records.bridge`, which chooses
one.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from ottla.protocol.records.batch import BatchHeader, Buffer
from ottla.protocol.records.columns import BINARY_BYTES_MAX, BinaryColumn, DecodedColumns, HeadersColumn, NumberColumn
from ottla.protocol.records.errors import TooLarge
from ottla.protocol.records.record import Record, read_records


class Scan(NamedTuple):
    """The result of scanning a batch's records without creating Python objects for them."""

    has_null_key: bool
    max_timestamp: tuple[int, int] | None
    """The highest timestamp and the first offset that has it; None if there are no records."""
    at_or_after: tuple[int, int] | None
    """Timestamp and offset of the first record at or after the wanted time."""


def decode_rows(header: BatchHeader, body: Buffer, from_offset: int, into: list[Record]) -> None:
    """Appends the records at or after `from_offset`."""
    into += [record for record in read_records(header, body) if record.offset >= from_offset]


def scan(header: BatchHeader, body: Buffer, wanted_timestamp_ms: int) -> Scan:
    """Scans the records of a batch."""
    has_null_key = False
    latest: tuple[int, int] | None = None
    found: tuple[int, int] | None = None
    for record in read_records(header, body):
        has_null_key = has_null_key or record.key is None
        if latest is None or record.timestamp_ms > latest[0]:
            latest = record.timestamp_ms, record.offset
        if found is None and record.timestamp_ms >= wanted_timestamp_ms:
            found = record.timestamp_ms, record.offset
    return Scan(has_null_key, latest, found)


def repair_header_keys(keys: BinaryColumn) -> BinaryColumn:
    """Replaces invalid UTF-8 in header keys by U+FFFD, as in a Python str: Arrow strings must be UTF-8."""
    data = bytes(keys.data)
    ends = memoryview(keys.offsets).cast("i")
    repaired = _BinaryBuilder()
    for at in range(keys.length):
        repaired.append(data[ends[at] : ends[at + 1]].decode(errors="replace").encode())
    return repaired.finish()


class _BinaryBuilder:
    def __init__(self) -> None:
        self._offsets = array("i", [0])
        self._data = bytearray()
        self._validity = bytearray()
        self._nulls = 0

    def append(self, item: bytes | None) -> None:
        row = len(self._offsets) - 1
        if row % 8 == 0:
            self._validity.append(0)
        if item is None:
            self._nulls += 1
        else:
            if len(self._data) + len(item) > BINARY_BYTES_MAX:
                raise TooLarge("a column of records holds more than 2 GiB")
            self._validity[row >> 3] |= 1 << (row & 7)
            self._data += item
        self._offsets.append(len(self._data))

    def finish(self) -> BinaryColumn:
        return BinaryColumn(
            length=len(self._offsets) - 1,
            offsets=memoryview(self._offsets).cast("B"),
            data=self._data,
            validity=self._validity if self._nulls else None,
            null_count=self._nulls,
        )


class ColumnsBuilder:
    """Collects the records of many batches into one set of columns. It must not be used after an error."""

    def __init__(self) -> None:
        self._offsets = array("q")
        self._timestamps = array("q")
        self._keys = _BinaryBuilder()
        self._values = _BinaryBuilder()
        self._header_ends = array("i", [0])
        self._header_keys = _BinaryBuilder()
        self._header_values = _BinaryBuilder()
        self._is_spent = False

    def append(self, header: BatchHeader, body: Buffer, from_offset: int) -> None:
        """Adds the records of a batch from `from_offset` on. `body` is uncompressed. Raises CorruptRecords."""
        self._spend()  # permanently, if this fails
        for record in read_records(header, body):
            if record.offset < from_offset:
                continue
            self._offsets.append(record.offset)
            self._timestamps.append(record.timestamp_ms)
            self._keys.append(record.key)
            self._values.append(record.value)
            for name, value in record.headers:
                self._header_keys.append(name.encode())
                self._header_values.append(value)
            self._header_ends.append(self._header_ends[-1] + len(record.headers))
        self._is_spent = False

    def finish(self) -> DecodedColumns:
        """Returns the columns. The builder cannot be used afterwards."""
        self._spend()
        rows = len(self._offsets)
        headers = HeadersColumn(
            length=rows,
            offsets=memoryview(self._header_ends).cast("B"),
            keys=self._header_keys.finish(),
            values=self._header_values.finish(),
        )
        return DecodedColumns(
            rows,
            NumberColumn(rows, memoryview(self._offsets).cast("B")),
            NumberColumn(rows, memoryview(self._timestamps).cast("B")),
            self._keys.finish(),
            self._values.finish(),
            headers,
        )

    def _spend(self) -> None:
        if self._is_spent:
            raise RuntimeError("this builder is finished, or has failed")
        self._is_spent = True

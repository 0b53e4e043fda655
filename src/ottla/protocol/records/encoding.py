"""Encodes Python rows or columns as a batch's records: the pure Python version of `_encoding`, and its test oracle.

Both have the same names and write exactly the same bytes. Callers use `ottla.protocol.records.bridge`, which chooses
one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.protocol.records.batch import HEADER_BYTES, Buffer
from ottla.protocol.records.columns import BinaryColumn, HeadersColumn, NumberColumn, SourceColumns
from ottla.protocol.records.envelope import INT32_MAX, INT64_MAX, INT64_MIN, RecordBytes
from ottla.protocol.records.record import HeaderRows, append_record, record_size

Row = tuple[bytes | None, bytes | None, HeaderRows, int]
"""Key, value, headers, timestamp in milliseconds."""


class RowEncoder:
    """Collects rows for one batch, up to a number of bytes. The first row is accepted whatever its size.

    The budget counts the records without the batch header. `append` returns whether the row was accepted.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = min(budget_bytes, INT32_MAX - HEADER_BYTES)
        self.record_count = 0
        self._base_timestamp = self._max_timestamp = -1
        self._buffer = bytearray(HEADER_BYTES)

    @property
    def size_bytes(self) -> int:
        """The size of the encoded records, without the batch header."""
        return len(self._buffer) - HEADER_BYTES

    def append(self, key: bytes | None, value: bytes | None, headers: HeaderRows, timestamp_ms: int) -> bool:
        """Adds a row. Returns False, and adds nothing, if it exceeds the budget. Raises OverflowError."""
        if not INT64_MIN <= timestamp_ms <= INT64_MAX:
            raise OverflowError("a timestamp is beyond 64 bits")
        rows = [(_encoded(name), _bytes(header_value)) for name, header_value in headers] if headers else []
        base = timestamp_ms if not self.record_count else self._base_timestamp
        key, value = _bytes(key), _bytes(value)
        size = record_size(self.record_count, timestamp_ms - base, key, value, rows)
        if self.record_count and self.size_bytes + size > self.budget_bytes:
            return False
        append_record(self._buffer, self.record_count, timestamp_ms - base, key, value, rows)
        if not self.record_count:
            self._base_timestamp = self._max_timestamp = timestamp_ms
        self._max_timestamp = max(self._max_timestamp, timestamp_ms)
        self.record_count += 1
        return True

    def extend(self, rows: Sequence[Row], start: int = 0) -> int:
        """Appends rows from `start` on, as many as fit, and returns the index of the first that did not."""
        for index in range(start, len(rows)):
            key, value, headers, timestamp_ms = rows[index]
            if not self.append(key, value, headers, timestamp_ms):
                return index
        return len(rows)

    def take(self) -> RecordBytes:
        """Returns the collected records and resets the encoder."""
        count = self.record_count
        taken = RecordBytes(self._buffer, count, max(0, count - 1), self._base_timestamp, self._max_timestamp)
        self._buffer = bytearray(HEADER_BYTES)
        self.record_count = 0
        self._base_timestamp = self._max_timestamp = -1
        return taken


def _bytes(data: object) -> bytes | None:
    """Converts anything with a buffer to bytes. A str is a mistake and must not pass silently."""
    if data is None or type(data) is bytes:
        return data
    return memoryview(data).tobytes()  # type: ignore[arg-type]  # memoryview itself rejects objects without a buffer


def _encoded(name: object) -> bytes:
    if not isinstance(name, str):
        raise TypeError(f"a header's key must be a str, not {type(name).__name__}")
    return name.encode()


class ColumnEncoder:
    """Encodes columns one batch at a time. The buffers are read in place."""

    def __init__(self, source: SourceColumns) -> None:
        self._rows = source.row_count
        self._default_timestamp_ms = source.default_timestamp_ms
        self._keys = _BinaryReader(source.keys, source.row_count)
        self._values = _BinaryReader(source.values, source.row_count)
        self._timestamps = _NumberReader(source.timestamps, source.row_count)
        self._headers = _HeadersReader(source.headers, source.row_count)

    def encode(self, start: int, budget_bytes: int) -> tuple[int, RecordBytes]:
        """Encodes the rows from `start` on that fit into one batch, at least one. Returns the next row, and the
        records."""
        if not 0 <= start < self._rows:
            raise ValueError(f"there is no row {start}")
        budget_bytes = min(budget_bytes, INT32_MAX - HEADER_BYTES)
        buffer = bytearray(HEADER_BYTES)
        base_timestamp = max_timestamp = self._timestamp(start)
        row = start
        while row < self._rows and row - start < INT32_MAX:
            timestamp_ms = self._timestamp(row)
            key, value, headers = self._keys.get(row), self._values.get(row), self._headers.get(row)
            size = record_size(row - start, timestamp_ms - base_timestamp, key, value, headers)
            if row > start and len(buffer) - HEADER_BYTES + size > budget_bytes:
                break
            append_record(buffer, row - start, timestamp_ms - base_timestamp, key, value, headers)
            max_timestamp = max(max_timestamp, timestamp_ms)
            row += 1
        return row, RecordBytes(buffer, row - start, row - start - 1, base_timestamp, max_timestamp)

    def _timestamp(self, row: int) -> int:
        timestamp_ms = self._timestamps.get(row)
        return self._default_timestamp_ms if timestamp_ms is None else timestamp_ms


def _is_valid(validity: Buffer | None, row: int) -> bool:
    return validity is None or bool(validity[row >> 3] >> (row & 7) & 1)


def _check_sizes(length: int, rows: int, first: int, validity: Buffer | None) -> None:
    if length < rows or first < 0:
        raise ValueError("a column is shorter than the others")
    if validity is not None and len(validity) * 8 < first + rows:
        raise ValueError("a column's validity bitmap is too short")


def _ends(offsets: Buffer, wide: bool, first: int, rows: int) -> memoryview:
    view = memoryview(offsets).cast("B")
    size = 8 if wide else 4
    if rows and len(view) < (first + rows + 1) * size:
        raise ValueError("a column's offsets are too short")
    return view[: len(view) // size * size].cast("q" if wide else "i")


class _BinaryReader:
    def __init__(self, column: BinaryColumn | None, rows: int) -> None:
        self._column = column
        if column is not None:
            _check_sizes(column.length, rows, column.first, column.validity)
            self._ends = _ends(column.offsets, column.wide, column.first, rows)
            self._data = memoryview(column.data).cast("B")

    def get(self, row: int) -> bytes | None:
        if self._column is None or not _is_valid(self._column.validity, self._column.first + row):
            return None
        start, end = self._ends[self._column.first + row], self._ends[self._column.first + row + 1]
        if not 0 <= start <= end <= len(self._data):
            raise ValueError("a column's offsets are outside of its data")
        return bytes(self._data[start:end])


class _NumberReader:
    def __init__(self, column: NumberColumn | None, rows: int) -> None:
        self._column = column
        if column is not None:
            _check_sizes(column.length, rows, column.first, column.validity)
            view = memoryview(column.data).cast("B")
            if len(view) < (column.first + rows) * 8:
                raise ValueError("a column's data is too short")
            self._data = view[: len(view) // 8 * 8].cast("q")

    def get(self, row: int) -> int | None:
        if self._column is None or not _is_valid(self._column.validity, self._column.first + row):
            return None
        return int(self._data[self._column.first + row])


class _HeadersReader:
    def __init__(self, column: HeadersColumn | None, rows: int) -> None:
        self._column = column
        if column is not None:
            _check_sizes(column.length, rows, column.first, column.validity)
            self._ends = _ends(column.offsets, column.wide, column.first, rows)
            self._keys = _BinaryReader(column.keys, column.keys.length)
            self._values = _BinaryReader(column.values, column.keys.length)

    def get(self, row: int) -> list[tuple[bytes, bytes | None]]:
        column = self._column
        if column is None or not _is_valid(column.validity, column.first + row):
            return []
        start, end = self._ends[column.first + row], self._ends[column.first + row + 1]
        if not 0 <= start <= end <= column.keys.length:
            raise ValueError("a column's offsets are outside of its headers")
        return [(self._key(at), self._values.get(at)) for at in range(start, end)]

    def _key(self, at: int) -> bytes:
        key = self._keys.get(at)
        if key is None:
            raise ValueError("a header's key is null")
        return key

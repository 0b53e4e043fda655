"""Records as columns in Arrow's memory layout, described by plain buffers, without pyarrow.

`decoding` builds them from batches, `encoding` reads them, `arrow` wraps them as pyarrow arrays and back. A column can
be a slice of its buffers: row i of the column is row `first + i` of the buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ottla.protocol.records.batch import Buffer

BINARY_BYTES_MAX = (1 << 31) - 1
"""Maximum size of one decoded column of keys, values or header parts: its offsets have 32 bits."""


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """Byte strings or nulls: row i is data[offsets[i]:offsets[i + 1]], null if its bit in `validity` is 0."""

    length: int
    offsets: Buffer
    data: Buffer
    validity: Buffer | None = None
    first: int = 0
    wide: bool = False
    """True if offsets are int64 (Arrow's large types), False if int32."""
    null_count: int = -1
    """Number of nulls; -1 if unknown."""


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """64-bit integers or nulls."""

    length: int
    data: Buffer
    validity: Buffer | None = None
    first: int = 0


@dataclass(frozen=True, slots=True)
class HeadersColumn:
    """A list of (key, value) pairs per row: row i is keys[offsets[i]:offsets[i + 1]] and the same range of values.

    A null list is empty. A header's key is never null.
    """

    length: int
    offsets: Buffer
    keys: BinaryColumn
    values: BinaryColumn
    validity: Buffer | None = None
    first: int = 0
    wide: bool = False


class DecodedColumns(NamedTuple):
    """The columns of decoded records."""

    row_count: int
    offsets: NumberColumn
    timestamps: NumberColumn
    keys: BinaryColumn
    values: BinaryColumn
    headers: HeadersColumn


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """The columns to encode. A missing column is all null; a null timestamp becomes the default one."""

    row_count: int
    keys: BinaryColumn | None = None
    values: BinaryColumn | None = None
    timestamps: NumberColumn | None = None
    headers: HeadersColumn | None = None
    default_timestamp_ms: int = -1

"""Converts between batches and Python records, rows and columns: compiled if available, otherwise in pure Python.

    decode_records(split_batches(blob), from_offset=42)     a list of Record
    decode_columns(split_batches(blob), from_offset=42)     columns in Arrow's layout
    encode_rows(rows, batch_bytes_max=16384)                batches, from (key, value, headers, timestamp_ms)
    encode_columns(columns, batch_bytes_max=1 << 20)        batches, from columns
    RowEncoder(budget_bytes), then seal(encoder.take(), traits)    one batch, row by row, for a producer that lingers

Control batches are left out: they are for the client, not for its user. A reader that needs them, or leaves out aborted
transactions, filters the batches of `split_batches`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.protocol.records.batch import HEADER_BYTES, Batch, BatchHeader, Buffer, split_batches
from ottla.protocol.records.columns import DecodedColumns, SourceColumns
from ottla.protocol.records.decoding import Scan
from ottla.protocol.records.encoding import Row
from ottla.protocol.records.envelope import DECODED_BYTES_MAX, INT64_MAX, RecordBytes, Traits, open_batch, seal
from ottla.protocol.records.errors import TooLarge
from ottla.protocol.records.record import Record

if TYPE_CHECKING:
    from ottla.protocol.records import decoding, encoding
    from ottla.protocol.records.encoding import RowEncoder

    IS_COMPILED: bool
else:
    try:
        from ottla.protocol.records import _decoding as decoding
        from ottla.protocol.records import _encoding as encoding

        IS_COMPILED = True
    except ImportError:
        from ottla.protocol.records import decoding, encoding

        IS_COMPILED = False
    RowEncoder = encoding.RowEncoder

__all__ = [
    "IS_COMPILED",
    "Record",
    "Row",
    "RowEncoder",
    "Traits",
    "decode_columns",
    "decode_records",
    "encode_columns",
    "encode_rows",
    "scan_batch",
    "seal",
    "split_batches",
]

SEQUENCE_MASK = 0x7FFFFFFF
DEFAULT_TRAITS = Traits()


def decode_records(
    batches: Iterable[Batch], *, from_offset: int = 0, limit_bytes: int = DECODED_BYTES_MAX, check_crc: bool = True
) -> list[Record]:
    """Decodes the records at or after `from_offset`. Raises TooLarge if the batches together exceed the limit."""
    records: list[Record] = []
    left = limit_bytes
    for batch in batches:
        if _has_records(batch, from_offset):
            header, body = open_batch(batch.data, left, check_crc=check_crc)
            left -= len(body)
            decoding.decode_rows(header, body, from_offset, records)
    return records


def decode_columns(
    batches: Iterable[Batch], *, from_offset: int = 0, limit_bytes: int = DECODED_BYTES_MAX, check_crc: bool = True
) -> DecodedColumns:
    """Decodes all batches into one set of columns. A column of more than 2 GiB is TooLarge, whatever the limit."""
    builder = decoding.ColumnsBuilder()
    left = limit_bytes
    for batch in batches:
        if _has_records(batch, from_offset):
            header, body = open_batch(batch.data, left, check_crc=check_crc)
            left -= len(body)
            builder.append(header, body, from_offset)
    return builder.finish()


def _has_records(batch: Batch, from_offset: int) -> bool:
    return not batch.header.is_control and batch.header.last_offset >= from_offset


def scan_batch(
    batch: Buffer, limit_bytes: int, wanted_timestamp_ms: int = INT64_MAX
) -> tuple[BatchHeader, Buffer, Scan]:
    """Scans every record of one batch, whose CRC the caller has verified. Also returns the header and the decompressed
    records."""
    header, body = open_batch(batch, limit_bytes, check_crc=False)
    return header, body, decoding.scan(header, body, wanted_timestamp_ms)


def encode_rows(rows: Sequence[Row], *, batch_bytes_max: int, traits: Traits = DEFAULT_TRAITS) -> list[bytearray]:
    """Encodes rows into as many batches as needed, none larger than the maximum unless a single record is.

    Sequences continue from one batch to the next. Records that compression does not shrink stay uncompressed.
    """
    encoder = encoding.RowEncoder(_budget(batch_bytes_max))
    batches: list[bytearray] = []
    row = 0
    while row < len(rows):
        row = encoder.extend(rows, row)
        traits = _seal_next(encoder.take(), traits, batches)
    return batches


def encode_columns(columns: SourceColumns, *, batch_bytes_max: int, traits: Traits = DEFAULT_TRAITS) -> list[bytearray]:
    """Encodes columns like `encode_rows`."""
    encoder = encoding.ColumnEncoder(columns)
    batches: list[bytearray] = []
    row = 0
    while row < columns.row_count:
        row, records = encoder.encode(row, _budget(batch_bytes_max))
        traits = _seal_next(records, traits, batches)
    return batches


def _budget(batch_bytes_max: int) -> int:
    if batch_bytes_max <= HEADER_BYTES:
        raise TooLarge(f"no record fits into a batch of {batch_bytes_max} bytes")
    return batch_bytes_max - HEADER_BYTES


def _seal_next(records: RecordBytes, traits: Traits, into: list[bytearray]) -> Traits:
    """Seals one batch and returns the traits of the next."""
    into.append(seal(records, traits, never_larger=True))
    if traits.base_sequence < 0:
        return traits
    return replace(traits, base_sequence=(traits.base_sequence + records.record_count) & SEQUENCE_MASK)

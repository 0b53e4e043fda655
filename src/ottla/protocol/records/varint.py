"""Zigzag varints: the lengths and deltas inside a record. Small numbers of either sign take few bytes.

A varint holds 32 bits in at most 5 bytes, a varlong 64 bits in at most 10. Larger values are rejected.
"""

from __future__ import annotations

from ottla.protocol.records.batch import Buffer
from ottla.protocol.records.errors import CorruptRecords

_VARINT_BITS = 32
_VARLONG_BITS = 64


def append_varint(into: bytearray, value: int) -> None:
    """Appends a varint or varlong, which have the same encoding. The caller keeps the value within the range of its
    kind."""
    raw = (value << 1) ^ (value >> 63)
    while raw > 0x7F:
        into.append(raw & 0x7F | 0x80)
        raw >>= 7
    into.append(raw)


def varint_size(value: int) -> int:
    """Returns the encoded size of a value."""
    return max(1, (((value << 1) ^ (value >> 63)).bit_length() + 6) // 7)


def read_varint(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """Returns the value and the position after it."""
    if at < end and (byte := data[at]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    return _read(data, at, end, _VARINT_BITS)


def read_varlong(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """Reads a varint of up to 64 bits before `end`. Returns the number and the position after it."""
    return _read(data, at, end, _VARLONG_BITS)


def _read(data: Buffer, at: int, end: int, bits: int) -> tuple[int, int]:
    raw = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        if byte >> max(0, min(8, bits - shift)):
            raise CorruptRecords(f"a number has more than {bits} bits")
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
    raise CorruptRecords("a number is truncated")

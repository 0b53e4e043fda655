"""The values that writers send: each contains its source and number, which determine the rest of it.

A source is one life of one producer. Its sequence numbers count its records in one partition, from 0, without gaps.
"""

from __future__ import annotations

import random
import struct

IDENTITY = struct.Struct(">IQH")
FILLER = random.Random(20).randbytes(1 << 16)
SEQUENCE_BITS = 40

Value = int
"""Source and sequence in one number: a history has millions of them."""


def value_id(source: int, sequence: int) -> Value:
    return source << SEQUENCE_BITS | sequence


def source_of(value: Value) -> int:
    return value >> SEQUENCE_BITS


def sequence_of(value: Value) -> int:
    return value & ((1 << SEQUENCE_BITS) - 1)


def name_of(value: Value) -> str:
    return f"{source_of(value)}.{sequence_of(value)}"


def payload(source: int, sequence: int) -> bytes:
    """Returns a payload, mostly small and sometimes large."""
    choice = (sequence * 2654435761 + source * 40503) & 0xFFFF_FFFF
    length = 10_000 + choice % 20_000 if choice % 197 == 0 else choice % 300
    return IDENTITY.pack(source, sequence, length) + FILLER[:length]


def identify(data: bytes) -> Value | None:
    """Returns None if the value differs from what was written."""
    if len(data) < IDENTITY.size:
        return None
    source, sequence, _ = IDENTITY.unpack_from(data)
    return value_id(source, sequence) if data == payload(source, sequence) else None

"""murmur2 as Kafka's Java client computes it: the pure Python twin of `_murmur2.pyx`.

It is the test oracle of the compiled version and its fallback where there was no C compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes | bytearray | memoryview) -> int:
    """Returns the hash as an unsigned 32-bit number (Java's is signed)."""
    length = len(data)
    mixed = (_SEED ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little")
        word = (word * _MULTIPLIER) & _MASK
        word ^= word >> 24
        word = (word * _MULTIPLIER) & _MASK
        mixed = ((mixed * _MULTIPLIER) & _MASK) ^ word
    if length > whole:
        mixed ^= int.from_bytes(data[whole:], "little")
        mixed = (mixed * _MULTIPLIER) & _MASK
    mixed ^= mixed >> 13
    mixed = (mixed * _MULTIPLIER) & _MASK
    return mixed ^ (mixed >> 15)


def partition_column(values: memoryview, ends: Sequence[int], partition_count: int, into: Any) -> None:
    """Computes the partition of each key. Key i is values[ends[i]:ends[i + 1]]."""
    for at in range(len(into)):
        into[at] = (murmur2(values[ends[at] : ends[at + 1]]) & 0x7FFFFFFF) % partition_count

"""The checksum of SQLite's WAL. It is cumulative from the header over each frame, so it covers everything before it."""

from __future__ import annotations

import struct
from collections.abc import Callable

WalChecksum = tuple[int, int]
_MASK = 0xFFFF_FFFF


def wal_checksum_in_python(data: bytes | memoryview, big_endian: bool, first: int, second: int) -> WalChecksum:
    """Sums pairs of 32-bit words, whose byte order the file's magic number gives. The Python twin of the extension."""
    if len(data) % 8:
        raise ValueError("the checksum is over pairs of 32-bit words")
    words = struct.unpack(f"{'>' if big_endian else '<'}{len(data) // 4}I", data)
    for i in range(0, len(words), 2):
        first = (first + words[i] + second) & _MASK
        second = (second + words[i + 1] + first) & _MASK
    return first, second


def _best() -> Callable[[bytes | memoryview, bool, int, int], WalChecksum]:
    try:
        from ottla.connect.sqlite._wal_checksum import wal_checksum as compiled
    except ImportError:
        return wal_checksum_in_python
    return compiled


wal_checksum = _best()

"""The format of SQLite's write-ahead log file. Pure: bytes in, values out.

The file has a header of 32 bytes and then frames, each a header of 24 bytes and a page. The last frame of a transaction
contains the size of the database in pages; the others have 0 there. A WAL that is fully checkpointed restarts at its
first frame with new salts; frames with other salts after those are leftovers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ottla.connect.sqlite.checksum import WalChecksum, wal_checksum

HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
PAGE_BYTES_MIN = 512
PAGE_BYTES_MAX = 65536
_MAGIC_LITTLE, _MAGIC_BIG = 0x377F0682, 0x377F0683
_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_CHECKED_OF_FRAME_HEADER = 8
UNCHECKED: WalChecksum = (0, 0)
"""The checksum of frames without salts and checksum.

SQLite 3.40.1 commits such frames when pages that were spilled in a transaction are written again after a ROLLBACK TO.
Its readers use them, since the wal-index has them. So they are accepted here, and the checksum of the next frame is
accepted as it is.
"""

Salts = tuple[int, int]


class DamagedWalError(Exception):
    """The file is not what SQLite wrote."""


@dataclass(frozen=True, slots=True)
class WalHeader:
    """The header of a WAL file."""

    page_bytes: int
    salts: Salts
    checksum: WalChecksum
    is_big_endian: bool


@dataclass(frozen=True, slots=True)
class WalPosition:
    """A position between two frames of a WAL. The checksum covers the header and every frame before it."""

    salts: Salts
    frame: int
    """The number of frames before this position."""
    checksum: WalChecksum


def is_page_size(size: int) -> bool:
    """Returns whether SQLite permits this page size: a power of two within its limits."""
    return PAGE_BYTES_MIN <= size <= PAGE_BYTES_MAX and size & (size - 1) == 0


def parse_header(data: bytes) -> WalHeader:
    """Parses the header. Raises DamagedWalError."""
    if len(data) < HEADER_BYTES:
        raise DamagedWalError(f"it has {len(data)} bytes, fewer than its header")
    magic, _version, page_bytes, _checkpoint, salt_1, salt_2, first, second = _HEADER.unpack_from(data)
    if magic not in (_MAGIC_LITTLE, _MAGIC_BIG):
        raise DamagedWalError(f"it has an unknown magic number (0x{magic:08x})")
    is_big_endian = magic == _MAGIC_BIG
    if wal_checksum(data[: HEADER_BYTES - 8], is_big_endian, 0, 0) != (first, second):
        raise DamagedWalError("the checksum of its header is wrong")
    if not is_page_size(page_bytes):
        raise DamagedWalError(f"its page size of {page_bytes} bytes is invalid")
    return WalHeader(page_bytes, (salt_1, salt_2), (first, second), is_big_endian)


def frame_position(frame: int, page_bytes: int) -> int:
    """Returns the file offset of a frame; the first frame is 0."""
    return HEADER_BYTES + frame * (FRAME_HEADER_BYTES + page_bytes)


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a WAL file."""

    page_number: int
    database_pages: int
    """The size of the database after the commit if this is the last frame of a transaction, otherwise 0."""
    page: bytes
    end: WalPosition


def parse_frames(header: WalHeader, start: WalPosition, data: bytes) -> Iterator[Frame]:
    """Yields the complete frames from `start`. Raises DamagedWalError at the first that does not continue the chain."""
    frame_bytes = FRAME_HEADER_BYTES + header.page_bytes
    view = memoryview(data)
    number, checksum = start.frame, start.checksum
    for at in range(0, len(data) - frame_bytes + 1, frame_bytes):
        page_number, database_pages, salt_1, salt_2, first, second = _FRAME.unpack_from(view, at)
        page = view[at + FRAME_HEADER_BYTES : at + frame_bytes]
        before = checksum
        checksum = wal_checksum(view[at : at + _CHECKED_OF_FRAME_HEADER], header.is_big_endian, *checksum)
        checksum = wal_checksum(page, header.is_big_endian, *checksum)
        if page_number and not (salt_1 or salt_2 or first or second):
            checksum = UNCHECKED
        elif (salt_1, salt_2) == header.salts and before == UNCHECKED and number:
            checksum = (first, second)
        elif (salt_1, salt_2) != header.salts or (first, second) != checksum or page_number == 0:
            raise DamagedWalError(f"frame {number + 1} is not what SQLite wrote: its salts or its checksum are wrong")
        number += 1
        yield Frame(page_number, database_pages, bytes(page), WalPosition(header.salts, number, checksum))

"""SQLite's write-ahead log file, as its file format describes it. Pure: bytes in, values out.

A header of 32 bytes; then frames, each a header of 24 bytes and a page. The last frame of a transaction has the size of
the database in pages; others have 0 there. A WAL that was used up begins anew from its first frame, with new salts:
frames of another salt behind those are leftovers.
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

Salts = tuple[int, int]


class DamagedWalError(Exception):
    """The file is not what SQLite wrote there."""


@dataclass(frozen=True, slots=True)
class WalHeader:
    page_bytes: int
    salts: Salts
    checksum: WalChecksum
    is_big_endian: bool


@dataclass(frozen=True, slots=True)
class WalPlace:
    """Between two frames of one WAL. The checksum stands for the header and every frame before."""

    salts: Salts
    frame: int
    """So many frames are before it."""
    checksum: WalChecksum


def is_page_size(size: int) -> bool:
    return PAGE_BYTES_MIN <= size <= PAGE_BYTES_MAX and size & (size - 1) == 0


def parse_header(data: bytes) -> WalHeader:
    if len(data) < HEADER_BYTES:
        raise DamagedWalError(f"it has {len(data)} bytes, which is less than its header")
    magic, _version, page_bytes, _checkpoint, salt_1, salt_2, first, second = _HEADER.unpack_from(data)
    if magic not in (_MAGIC_LITTLE, _MAGIC_BIG):
        raise DamagedWalError(f"it does not begin as a WAL does (0x{magic:08x})")
    is_big_endian = magic == _MAGIC_BIG
    if wal_checksum(data[: HEADER_BYTES - 8], is_big_endian, 0, 0) != (first, second):
        raise DamagedWalError("the checksum of its header is wrong")
    if not is_page_size(page_bytes):
        raise DamagedWalError(f"its pages have {page_bytes} bytes")
    return WalHeader(page_bytes, (salt_1, salt_2), (first, second), is_big_endian)


def frame_position(frame: int, page_bytes: int) -> int:
    """Where the frame of this number begins in the file; the first is 0."""
    return HEADER_BYTES + frame * (FRAME_HEADER_BYTES + page_bytes)


@dataclass(frozen=True, slots=True)
class Frame:
    page_number: int
    database_pages: int
    """After the commit, if this is the last frame of one, else 0."""
    page: bytes
    end: WalPlace


def parse_frames(header: WalHeader, start: WalPlace, data: bytes) -> Iterator[Frame]:
    """Whole frames that begin at `start`. DamagedWalError at the first that does not continue what was before."""
    frame_bytes = FRAME_HEADER_BYTES + header.page_bytes
    view = memoryview(data)
    number, checksum = start.frame, start.checksum
    for at in range(0, len(data) - frame_bytes + 1, frame_bytes):
        page_number, database_pages, salt_1, salt_2, first, second = _FRAME.unpack_from(view, at)
        page = view[at + FRAME_HEADER_BYTES : at + frame_bytes]
        checksum = wal_checksum(view[at : at + _CHECKED_OF_FRAME_HEADER], header.is_big_endian, *checksum)
        checksum = wal_checksum(page, header.is_big_endian, *checksum)
        if (salt_1, salt_2) != header.salts or (first, second) != checksum or page_number == 0:
            raise DamagedWalError(f"frame {number + 1} is not what SQLite wrote: its salts or its checksum are wrong")
        number += 1
        yield Frame(page_number, database_pages, bytes(page), WalPlace(header.salts, number, checksum))

"""The format of the log's entries: snapshots and transactions of a database, as pages. Pure.

Each entry is one part of a snapshot or of a transaction; most transactions have one part. An item without a last part
does not count: its writer died, and the next writer started it again. Each entry contains the hash of the one before
it, skipping unfinished items, so that a break in the chain is detectable.

    magic | kind | flags | part | generation | transaction | time | hash of the entry before
    | offset of the snapshot before | page size | pages of the database | place in the WAL | checksum of the database
    | count of pages | their bytes | CRC32C | zstd(page numbers, pages)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b

import cramjam
from crc32c import crc32c

from ottla.connect.sqlite.wal_format import WalPosition, is_page_size

MAGIC = b"OSQ1"
NO_OFFSET = -1
PART_BYTES = 512 * 1024
"""Maximum bytes of pages in an entry, before compression. It keeps an entry below any log's limit (max.message.bytes is
1 MB)."""
BEGINNING = bytes(16)
"""The previous hash in the very first entry."""
_IS_LAST, _HAS_STATE = 1, 2
_ZSTD_LEVEL = 1
_HEADER = struct.Struct(">4sBBI16sQQ16sqIIIIIIIQII")
_CRC = struct.Struct(">I")
_BODY_AT = _HEADER.size + _CRC.size


class Kind(IntEnum):
    """The kinds of items."""

    SNAPSHOT = 1
    TRANSACTION = 2


class DamagedEntryError(Exception):
    """The entry is damaged, or this program did not write it."""


@dataclass(frozen=True, slots=True)
class Part:
    """The header of an entry."""

    kind: Kind
    number: int
    """The number of the part, from 0."""
    is_last: bool
    generation: bytes
    """A random 16-byte id of a history without holes, which begins with a snapshot."""
    transaction: int
    """The number of the transaction that leads to this state. A snapshot within a generation has the number of the
    transaction before it."""
    time_ms: int
    """When the transaction was seen, which is soon after its commit. Never decreases."""
    previous: bytes
    snapshot_offset: int
    """The first offset of the newest complete snapshot before this item; NO_OFFSET if there is none."""
    page_bytes: int
    database_pages: int
    place: WalPosition
    """The position in the database's WAL after this item."""
    state: int | None
    """The checksum of the whole database after this item, if the writer knew it; only in the last part."""


def encode(part: Part, pages: list[tuple[int, bytes]]) -> bytes:
    """Encodes a part and its pages."""
    numbers = struct.pack(f">{len(pages)}I", *(number for number, _ in pages))
    content = numbers + b"".join(page for _, page in pages)
    flags = (_IS_LAST if part.is_last else 0) | (_HAS_STATE if part.state is not None else 0)
    place = part.place
    header = _HEADER.pack(
        MAGIC,
        part.kind,
        flags,
        part.number,
        part.generation,
        part.transaction,
        part.time_ms,
        part.previous,
        part.snapshot_offset,
        part.page_bytes,
        part.database_pages,
        *place.salts,
        place.frame,
        *place.checksum,
        part.state or 0,
        len(pages),
        len(content),
    )
    body = bytes(cramjam.zstd.compress(content, level=_ZSTD_LEVEL))
    return header + _CRC.pack(crc32c(body, crc32c(header))) + body


def link(entry: bytes) -> bytes:
    """Returns the hash that the next entry stores as its previous hash."""
    return blake2b(entry, digest_size=16).digest()


def decode(entry: bytes) -> Part:
    """Decodes the header of an entry. The checksum that it verifies covers the pages too."""
    if len(entry) < _BODY_AT or entry[:4] != MAGIC:
        raise DamagedEntryError("it was not written by `ottla connect sqlite`")
    header = entry[: _HEADER.size]
    (crc,) = _CRC.unpack_from(entry, _HEADER.size)
    if crc32c(memoryview(entry)[_BODY_AT:], crc32c(header)) != crc:
        raise DamagedEntryError("its checksum is wrong")
    _, kind, flags, number, generation, transaction, time_ms, previous, snapshot_offset, *rest = _HEADER.unpack(header)
    page_bytes, database_pages, salt_1, salt_2, frame, first, second, state, _, _ = rest
    if kind not in tuple(Kind) or not is_page_size(page_bytes):
        raise DamagedEntryError(f"it has the unknown kind {kind}")
    return Part(
        Kind(kind),
        number,
        bool(flags & _IS_LAST),
        generation,
        transaction,
        time_ms,
        previous,
        snapshot_offset,
        page_bytes,
        database_pages,
        WalPosition((salt_1, salt_2), frame, (first, second)),
        state if flags & _HAS_STATE else None,
    )


def decode_pages(entry: bytes) -> list[tuple[int, bytes]]:
    """Decodes the pages of an entry that `decode` has accepted."""
    *_, count, content_bytes = _HEADER.unpack_from(entry)
    page_bytes = decode(entry).page_bytes
    if content_bytes != count * (4 + page_bytes) or content_bytes > 2 * PART_BYTES:
        raise DamagedEntryError(f"its header has {count} pages in {content_bytes} bytes, which is invalid")
    content = bytearray(content_bytes)
    try:
        written = cramjam.zstd.decompress_into(memoryview(entry)[_BODY_AT:], content) if content else 0
    except cramjam.DecompressionError as wrong:
        raise DamagedEntryError(f"it cannot be decompressed ({wrong})") from None
    if written != content_bytes:
        raise DamagedEntryError("it has fewer pages than its header says")
    numbers = struct.unpack_from(f">{count}I", content)
    at = 4 * count
    return [(n, bytes(content[at + i * page_bytes : at + (i + 1) * page_bytes])) for i, n in enumerate(numbers)]

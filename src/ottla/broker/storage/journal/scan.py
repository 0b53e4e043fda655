"""Finds the blocks of one journal file, and trusts nothing without a matching checksum.

A file holds the blocks of the current pass, one after another from the start, followed by the remains of earlier
passes. Released blocks do not count, so everything that counts belongs to the current pass. The scan steps over each
block that counts. Anywhere else it tries every multiple of the smallest alignment, since there may be a damaged block
with good ones after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from struct import Struct
from typing import NamedTuple

from ottla.broker.storage.journal.format import (
    ALIGNMENT_MIN,
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    BlockHeader,
    EntryHeader,
    Mutation,
    payloads,
    unpack_block_header,
    unpack_entries,
)
from ottla.ports import DataFile
from ottla.protocol.records.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC, checksum

_CHUNK_BYTES = 1 << 20
_UNSIGNED = Struct(">qiibI")
"""The part of a batch that its CRC does not cover: base offset, length, leader epoch, magic and the CRC itself."""


class BlockState(Enum):
    """Whether a block is intact, or what is wrong with it."""

    GOOD = "good"
    BAD_ENTRIES = "its entry headers do not match their checksum"
    BAD_PAYLOAD = "a payload does not match its checksum"
    UNREADABLE = "it cannot be read"


class FoundBlock(NamedTuple):
    """A block with a valid header that is not released."""

    path: str
    header: BlockHeader
    state: BlockState
    bad_keys: frozenset[bytes] | None = frozenset()
    """The logs whose payloads are bad; None if unknown."""
    truncates: bool = False
    """True if its entries include a truncation or a reset."""


class UnreadablePlace(NamedTuple):
    """A position at which reading the file failed."""

    path: str
    offset: int
    error: OSError


def scan_file(file: DataFile, number: int, journal_id: bytes, released: int) -> Iterator[FoundBlock | UnreadablePlace]:
    """Yields the unreleased blocks of a file, and the places that cannot be read."""
    size_bytes = file.size()
    chunk, chunk_at = b"", 0
    at = 0
    while at + BLOCK_HEADER_BYTES <= size_bytes:
        if not chunk_at <= at < chunk_at + len(chunk):
            chunk_at = at
            try:
                chunk = _read(file, at, min(_CHUNK_BYTES, size_bytes - at))
            except OSError as error:
                yield UnreadablePlace(file.path, at, error)
                chunk = bytes(ALIGNMENT_MIN)  # skip one page and try the next
        header = _header_at(chunk, at - chunk_at)
        if header is None or not _counts(header, number, at, size_bytes, journal_id, released):
            at += ALIGNMENT_MIN
            continue
        yield _check_block(file, header)
        at += header.block_bytes


def read_block(file: DataFile, header: BlockHeader) -> bytes:
    """Reads a block. The header must be valid, so that its length can be trusted."""
    return file.read_at(header.offset, header.block_bytes)


def is_good(entry: EntryHeader, payload: memoryview) -> bool:
    """Reports whether each byte of the payload is as it was appended; see `format` for the checksums that prove it."""
    if entry.kind != Mutation.APPEND:
        return entry.kind in _KINDS and not payload
    if len(payload) != entry.payload_bytes or len(payload) < HEADER_BYTES:
        return False
    unsigned = (entry.offset, entry.payload_bytes - LOG_OVERHEAD_BYTES, entry.leader_epoch, MAGIC, entry.crc)
    return _UNSIGNED.unpack_from(payload) == unsigned and checksum(payload) == entry.crc


_KINDS = frozenset(Mutation)


def _read(file: DataFile, at: int, length: int) -> bytes:
    """Reads a chunk, or only its first page if a later part cannot be read."""
    try:
        return file.read_at(at, length)
    except OSError:
        return file.read_at(at, min(length, ALIGNMENT_MIN))


def _header_at(chunk: bytes, at: int) -> BlockHeader | None:
    """Parses the header at a position. Chunks start and end at multiples of the alignment (or at the end of the file),
    so no header is split."""
    return unpack_block_header(chunk, at) if chunk.startswith(BLOCK_MAGIC, at) else None


def _counts(header: BlockHeader, number: int, at: int, size_bytes: int, journal_id: bytes, released: int) -> bool:
    return (
        header.journal_id == journal_id
        and header.sequence > released
        and header.file_number == number
        and header.offset == at
        and header.lap <= header.sequence
        and header.durable_sequence < header.sequence
        and header.payloads_at <= header.block_bytes <= size_bytes - at
        and header.block_bytes % ALIGNMENT_MIN == 0
    )


def _check_block(file: DataFile, header: BlockHeader) -> FoundBlock:
    try:
        data = read_block(file, header)
    except OSError:
        return FoundBlock(file.path, header, BlockState.UNREADABLE, None)
    entries = unpack_entries(data, header)
    if entries is None:
        return FoundBlock(file.path, header, BlockState.BAD_ENTRIES, None)
    bad_keys = frozenset(
        entry.packed_key
        for entry, payload in zip(entries, payloads(data, header, entries), strict=True)
        if not is_good(entry, payload)
    )
    truncates = any(entry.kind in (Mutation.TRUNCATE, Mutation.RESET) for entry in entries)
    return FoundBlock(file.path, header, BlockState.BAD_PAYLOAD if bad_keys else BlockState.GOOD, bad_keys, truncates)

"""Finds the blocks of one journal file, trusting nothing that is not under a checksum that matches.

A file holds blocks of the present pass, one after another from the start, and behind them what is left of earlier
passes. Blocks that were released do not count, so everything that counts belongs to the present pass. A block that
counts is stepped over; anywhere else the next multiple of the smallest alignment may be the start of one, since what
lies there may be a damaged block with good ones behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from struct import Struct
from typing import NamedTuple

from ottla.log.journal.format import (
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
from ottla.records.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC, checksum

_CHUNK_BYTES = 1 << 20
_UNSIGNED = Struct(">qiibI")
"""The part of a batch that its checksum does not cover: base offset, length, leader epoch, magic, the checksum."""


class BlockState(Enum):
    GOOD = "good"
    BAD_ENTRIES = "its entry headers do not match their checksum"
    BAD_PAYLOAD = "a payload does not match its checksum"
    UNREADABLE = "it cannot be read"


class FoundBlock(NamedTuple):
    """A block whose header is right and which is not released."""

    path: str
    header: BlockHeader
    state: BlockState
    bad_keys: frozenset[bytes] | None = frozenset()
    """The logs whose payloads are bad; None if that cannot be known."""
    truncates: bool = False
    """There is a truncation or a reset among its entries."""


class UnreadablePlace(NamedTuple):
    path: str
    offset: int
    error: OSError


def scan_file(file: DataFile, number: int, journal_id: bytes, released: int) -> Iterator[FoundBlock | UnreadablePlace]:
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
                chunk = bytes(ALIGNMENT_MIN)  # one page is given up, the next one is tried
        header = _header_at(chunk, at - chunk_at)
        if header is None or not _counts(header, number, at, size_bytes, journal_id, released):
            at += ALIGNMENT_MIN
            continue
        yield _check_block(file, header)
        at += header.block_bytes


def read_block(file: DataFile, header: BlockHeader) -> bytes:
    """The caller knows the header to be right, so that the length is one."""
    return file.read_at(header.offset, header.block_bytes)


def is_good(entry: EntryHeader, payload: memoryview) -> bool:
    """Each byte of the payload is what was appended: see `format` for the checksums that say so."""
    if entry.kind != Mutation.APPEND:
        return entry.kind in _KINDS and not payload
    if len(payload) != entry.payload_bytes or len(payload) < HEADER_BYTES:
        return False
    unsigned = (entry.offset, entry.payload_bytes - LOG_OVERHEAD_BYTES, entry.leader_epoch, MAGIC, entry.crc)
    return _UNSIGNED.unpack_from(payload) == unsigned and checksum(payload) == entry.crc


_KINDS = frozenset(Mutation)


def _read(file: DataFile, at: int, length: int) -> bytes:
    """The chunk; or only its first page, if the rest of it has a place that cannot be read."""
    try:
        return file.read_at(at, length)
    except OSError:
        return file.read_at(at, min(length, ALIGNMENT_MIN))


def _header_at(chunk: bytes, at: int) -> BlockHeader | None:
    """Chunks start and end at multiples of the alignment (or of the file), so a header is never cut in two."""
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

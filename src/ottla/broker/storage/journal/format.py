"""The binary format of the journal.

A group commit is one block, in one file, at a multiple of the alignment:

    | block header | entry header, entry header, ... | payload, payload, ... | zeros up to the alignment |

All numbers are big-endian, as in Kafka's batches.

    block header  magic 4, version 2, unused 2, journal id 16, file number 4, offset in the file 8, lap 8, sequence 8,
                  durable sequence 8, file number and offset of the previous block 12, block length 4, entry count 4,
                  entries' CRC 4, header's CRC 4
    entry header  kind 1, unused 3, topic id 16, partition 4, generation 4, offset 8, next offset 8, leader epoch 4,
                  batch CRC 4, payload length 4

Every byte is covered by a checksum without a pass over the payloads on the hot path. The header's CRC covers the block
header, which includes the entries' CRC, which covers all entry headers. A payload is a record batch. Its producer
computed a CRC-32C over the bytes from 21 on, the broker verified it on arrival, and the entry header holds it. The
first 21 bytes are base offset, length, leader epoch, magic and that CRC. The entry header has all of them, so replay
compares the two. The zeros at the end carry no information.

The header has its own CRC so that a reader trusts no length before it is verified, and so that a block with a torn body
can still be identified by its sequence.

The lap is the sequence of the first block of the current pass over the file. Blocks of an earlier pass, which remain
after the end of the current one, can therefore never look like its continuation. File number and offset reveal a block
that was written to the wrong place; those of the previous block say where to look for a missing one. The id is random,
created with the data directory, and never shown to a client, so nobody can send a batch that reads as a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from ottla.protocol.model.ids import LogKey, PartitionIndex, TopicId

BLOCK_MAGIC = b"OtJb"
FORMAT_VERSION = 1
JOURNAL_ID_BYTES = 16
ALIGNMENT_MIN = 4096
"""Blocks start at multiples of at least this; a reader looks for blocks at all of them."""

_BLOCK_FIELDS = Struct(">4sHxx16sIQQQQIQIII")
_CRC = Struct(">I")
_KEY = Struct(">16sII")
_ENTRY = Struct(">Bxxx24sqqiII")
BLOCK_HEADER_BYTES = _BLOCK_FIELDS.size + _CRC.size
ENTRY_BYTES = _ENTRY.size

pack_entry_into = _ENTRY.pack_into
"""(buffer, at, kind, packed key, offset, next offset, leader epoch, batch CRC, payload length)"""


class Mutation(IntEnum):
    """A mutation of a log. The offset of a truncation is the new end; that of a log start is the new start. A reset
    drops everything: the log is empty, and begins and ends at the offset."""

    APPEND = 1
    TRUNCATE = 2
    LOG_START = 3
    DELETE = 4
    RESET = 5


class BlockHeader(NamedTuple):
    """The header of a block, without magic, version and CRC."""

    journal_id: bytes
    file_number: int
    offset: int
    lap: int
    sequence: int
    durable_sequence: int
    """All blocks up to this sequence were on stable storage when this block was written."""
    previous_file_number: int
    """The file of the previous block; 0 in the first block of a run."""
    previous_offset: int
    block_bytes: int
    entry_count: int
    entries_crc: int

    @property
    def payloads_at(self) -> int:
        """The position of the first payload in the block, after the entries."""
        return BLOCK_HEADER_BYTES + self.entry_count * ENTRY_BYTES


class EntryHeader(NamedTuple):
    """The header of one entry."""

    kind: int
    packed_key: bytes
    offset: int
    next_offset: int
    leader_epoch: int
    crc: int
    payload_bytes: int


def pack_key(key: LogKey) -> bytes:
    """Returns a log's key as entry headers hold it. It is packed once per log, not once per append."""
    return _KEY.pack(key.topic_id.bytes, key.partition, key.generation)


@lru_cache(maxsize=10_000)  # a journal has few logs and many entries
def unpack_key(packed: bytes) -> LogKey:
    """Decodes the key of a log. Cached."""
    topic_id, partition, generation = _KEY.unpack(packed)
    return LogKey(TopicId(UUID(bytes=topic_id)), PartitionIndex(partition), generation)


def padded(length: int, alignment: int) -> int:
    """Rounds the length up to a multiple of the alignment."""
    return -(-length // alignment) * alignment


def pack_block_header_into(buffer: bytearray, header: BlockHeader) -> None:
    """Writes the block header with magic, version and CRC at the start of the buffer."""
    _BLOCK_FIELDS.pack_into(buffer, 0, BLOCK_MAGIC, FORMAT_VERSION, *header)
    _CRC.pack_into(buffer, _BLOCK_FIELDS.size, crc32c(memoryview(buffer)[: _BLOCK_FIELDS.size]))


def unpack_block_header(data: bytes | memoryview, at: int = 0) -> BlockHeader | None:
    """Parses a block header. None unless it is complete, of this version, and matches its checksum."""
    view = memoryview(data)[at : at + BLOCK_HEADER_BYTES]
    if len(view) < BLOCK_HEADER_BYTES or view[:4] != BLOCK_MAGIC:
        return None
    if crc32c(view[: _BLOCK_FIELDS.size]) != _CRC.unpack_from(view, _BLOCK_FIELDS.size)[0]:
        return None
    _magic, version, *fields = _BLOCK_FIELDS.unpack_from(view)
    return BlockHeader._make(fields) if version == FORMAT_VERSION else None


def unpack_entries(data: bytes | memoryview, header: BlockHeader) -> list[EntryHeader] | None:
    """Parses the entry headers of a block. `data` starts with the block. None if the headers or their lengths cannot be
    trusted."""
    entries = memoryview(data)[BLOCK_HEADER_BYTES : header.payloads_at]
    if len(entries) != header.entry_count * ENTRY_BYTES or crc32c(entries) != header.entries_crc:
        return None
    found = [EntryHeader._make(fields) for fields in _ENTRY.iter_unpack(entries)]
    if header.payloads_at + sum(entry.payload_bytes for entry in found) > header.block_bytes:
        return None
    return found


def payloads(data: bytes | memoryview, header: BlockHeader, entries: list[EntryHeader]) -> Iterator[memoryview]:
    """Yields the payload of each entry, in order; it is empty for everything but appends."""
    view = memoryview(data)
    at = header.payloads_at
    for entry in entries:
        yield view[at : at + entry.payload_bytes]
        at += entry.payload_bytes

"""Reads the journal back at start-up. It only reads, so a crash during recovery changes nothing.

Each block names the highest sequence that was durable before it. If any block shows that a missing or bad block was
durable, that block may have been acknowledged, and its loss is damage. Otherwise it is the torn end, which was never
acknowledged. With one write in flight there is at most one torn block, the last.

Memory use is bounded by one block plus a few numbers for each block: the files are scanned once to decide, and read
again block by block for the entries.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from ottla.broker.storage.journal.format import BlockHeader, Mutation, payloads, unpack_entries, unpack_key
from ottla.broker.storage.journal.ring_files import file_name, file_number
from ottla.broker.storage.journal.scan import BlockState, FoundBlock, UnreadablePlace, is_good, read_block, scan_file
from ottla.ports import DataFile, FileSystem
from ottla.protocol.model.ids import LogKey
from ottla.protocol.records.batch import BatchHeader, read_header
from ottla.reach import branch

_TORN = branch("the torn end of the journal is dropped", __name__)
_DAMAGED = branch("damage of the journal is found at a start", __name__)


class JournalEntry(NamedTuple):
    """One mutation. Entries come in the order in which they were made. `header` and `batch` are set for appends
    only."""

    sequence: int
    kind: Mutation
    key: LogKey
    offset: int
    """The base offset, the end after a truncation, or the new log start."""
    header: BatchHeader | None
    batch: memoryview
    next_offset: int = -1
    """For an append: the offset after the batch."""

    @property
    def is_lost(self) -> bool:
        """True for an append of which only the offsets are left."""
        return self.kind is Mutation.APPEND and self.header is None


class JournalDamage(NamedTuple):
    """Acknowledged entries that can no longer be read, and where they were."""

    path: str
    offset: int
    first_sequence: int
    last_sequence: int
    keys: frozenset[LogKey] | None
    """The logs that lost entries; None if unknown, so that it may be any log."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path} at {self.offset}, sequences {self.first_sequence} to {self.last_sequence}: {self.reason}"


class TornEnd(NamedTuple):
    """A block that was being written when the broker stopped. None of it was acknowledged, and none of it is used."""

    path: str
    offset: int
    sequence: int


@dataclass(frozen=True, slots=True)
class RecoveredJournal:
    """The contents of a journal above the released sequence.

    `entries()` also includes the good entries in and after a damaged block: a log that is not in `damage` is complete.
    """

    files: FileSystem
    blocks: tuple[FoundBlock, ...]
    """Ordered by sequence, without the torn end."""
    damage: tuple[JournalDamage, ...]
    torn_end: TornEnd | None
    last_sequence: int
    """The highest sequence seen, even in a torn block: the next journal continues above it."""

    @property
    def truncates(self) -> bool:
        """True if any block holds a truncation or a reset."""
        return any(block.truncates for block in self.blocks)

    def entries(self, *, with_lost: bool = False) -> Iterator[JournalEntry]:
        """Yields the entries. Blocking. Each batch is a view of its block: copy it to keep it. With `with_lost`,
        appends of which only the offsets can still be read are included."""
        for path, blocks in groupby(self.blocks, key=lambda block: block.path):
            file = self.files.open(path)
            try:
                for block in blocks:
                    for entry in _entries_of(file, block):
                        if with_lost or not entry.is_lost:
                            yield entry
            finally:
                file.close()


def _entries_of(file: DataFile, block: FoundBlock) -> Iterator[JournalEntry]:
    """Verifies the block again: data that was good a moment ago must not be replayed if it no longer is."""
    header = block.header
    data = read_block(file, header)
    found = unpack_entries(data, header)
    if found is None:
        raise OSError(f"{block.path} at {header.offset} changed while it was read")
    for entry, payload in zip(found, payloads(data, header, found), strict=True):
        batch_header = None
        if not is_good(entry, payload):
            if entry.packed_key not in (block.bad_keys or ()):
                raise OSError(f"{block.path} at {header.offset} changed while it was read")
            if entry.kind != Mutation.APPEND:
                continue
            payload = memoryview(b"")
        elif entry.kind == Mutation.APPEND:
            batch_header = read_header(payload)
        key, kind = unpack_key(entry.packed_key), Mutation(entry.kind)
        yield JournalEntry(header.sequence, kind, key, entry.offset, batch_header, payload, entry.next_offset)


def recover(files: FileSystem, directory: str, journal_id: bytes, released: int) -> RecoveredJournal:
    """Reads a journal at start-up. Blocking. `released` comes from the last durable checkpoint, 0 if there is none."""
    found: list[FoundBlock] = []
    damage: list[JournalDamage] = []
    for name in files.list_dir(directory) if files.exists(directory) else ():
        number = file_number(name)
        if number is None:
            continue
        file = files.open(posixpath.join(directory, name))
        try:
            for place in scan_file(file, number, journal_id, released):
                if isinstance(place, UnreadablePlace):
                    damage.append(_unreadable(place))
                else:
                    found.append(place)
        finally:
            file.close()
    found.sort(key=lambda block: (block.header.sequence, block.state is not BlockState.GOOD))
    return _decide(files, directory, found, damage, released)


def _decide(
    files: FileSystem, directory: str, found: list[FoundBlock], damage: list[JournalDamage], released: int
) -> RecoveredJournal:
    """Separates damage from the torn end, given blocks ordered by sequence (a good one before its bad duplicate)."""
    durable = max([released, *(block.header.durable_sequence for block in found)])
    usable: list[FoundBlock] = []
    torn_end: TornEnd | None = None
    previous: FoundBlock | None = None
    sequence = released
    for block in found:
        header = block.header
        if header.sequence == sequence:
            if block.state is BlockState.GOOD:
                damage.append(_damage_of(block._replace(bad_keys=None), "another block has the same sequence"))
            continue
        if header.sequence > sequence + 1:
            damage.append(_gap(directory, previous, header, sequence + 1))
        if block.state is BlockState.GOOD:
            usable.append(block)
        elif header.sequence <= durable or block.state is BlockState.UNREADABLE:
            damage.append(_damage_of(block, block.state.value))
            if block.state is BlockState.BAD_PAYLOAD:
                usable.append(block)
        else:
            _TORN()
            torn_end = TornEnd(block.path, header.offset, header.sequence)
        sequence, previous = header.sequence, block
    if damage:
        _DAMAGED()
    return RecoveredJournal(files, tuple(usable), tuple(damage), torn_end, sequence)


def _damage_of(block: FoundBlock, reason: str) -> JournalDamage:
    header = block.header
    keys = None if block.bad_keys is None else frozenset(map(unpack_key, block.bad_keys))
    return JournalDamage(block.path, header.offset, header.sequence, header.sequence, keys, reason)


def _gap(directory: str, previous: FoundBlock | None, after: BlockHeader, first_missing: int) -> JournalDamage:
    """Describes a gap by the place of the first missing block, or else of the last one."""
    last_missing = after.sequence - 1
    path = posixpath.join(directory, file_name(after.previous_file_number))
    offset = after.previous_offset
    if last_missing > first_missing and previous is not None:
        path, offset = previous.path, previous.header.offset + previous.header.block_bytes
    elif last_missing > first_missing and after.lap <= first_missing:
        path, offset = posixpath.join(directory, file_name(after.file_number)), 0
    reason = "the block is missing or its header does not match its checksum"
    return JournalDamage(path, offset, first_missing, last_missing, None, reason)


def _unreadable(place: UnreadablePlace) -> JournalDamage:
    """Treats an unreadable place as damage. It may be free space, but that cannot be known."""
    return JournalDamage(place.path, place.offset, 0, 0, None, f"it cannot be read: {place.error}")

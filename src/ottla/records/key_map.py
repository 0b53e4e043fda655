"""The last offset of each key of a part of a log, in bounded memory, and which records that leaves.

A key is known by 16 bytes of a keyed hash. Two keys with the same hash would cost one of them its value, so nobody but
this process knows the hash's key, and a pair is as likely as a guess of 128 bits.

`KeyMap` is the plain twin of the compiled one, and its oracle; `new_key_map` chooses. What only the compiled one does
is to look through many batches at once: `note_batches` and `sift_batches` take the leading batches of a piece of a
segment that need nothing special, and leave the others to the general way, one by one. The plain one leaves all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

from ottla.records.batch import BatchHeader, Buffer
from ottla.records.envelope import INT64_MAX, INT64_MIN
from ottla.records.errors import CorruptRecords
from ottla.records.record import Record, read_records
from ottla.records.varint import append_varint, read_varint, read_varlong

ENTRY_BYTES = 24
"""Hash and offset."""
LOAD_MAX = 0.75
NO_TIMESTAMP = -1


class Look(NamedTuple):
    """What a batch keeps."""

    records: int
    tombstones: int
    """Of them, those that say that a key is gone."""
    max_timestamp: int
    """The highest timestamp among those that stay; -1 if none does."""


class Hole(NamedTuple):
    """Batches that are gone and have no placeholder yet."""

    first_offset: int
    next_offset: int
    leader_epoch: int


class Sifting(NamedTuple):
    """What decides about a batch, beside the keys."""

    upto: int
    """Batches that reach above this stay as they are: not all of their keys are known."""
    now_ms: int
    horizon_ms: int
    """From when on tombstones that are seen for the first time may go."""
    last_batches: Sequence[int]
    """The base offset of the last batch of each producer, in rising order."""


class Sifted(NamedTuple):
    """What is left of the leading batches of a piece."""

    taken_bytes: int
    next_offset: int
    data: bytes
    base_offsets: list[int]
    positions: list[int]
    """In the data."""
    max_timestamps: list[int]
    hole: Hole | None
    removed_records: int
    changed: bool


class KeyMap:
    def __init__(self, keys_max: int, hash_key: bytes) -> None:
        self._keys_max = keys_max
        self._hash_key = hash_key
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def has_room_for(self, keys: int) -> bool:
        return len(self._offsets) + keys <= self._keys_max

    def note(self, header: BatchHeader, body: Buffer) -> None:
        """The records of a batch come after all that were noted before. CorruptRecords if they are malformed."""
        for record in read_records(header, body):
            if record.key is not None:
                self._offsets[self._hash(record.key)] = record.offset

    def look(self, header: BatchHeader, body: Buffer, drops_tombstones: bool) -> Look:
        """What is left of a batch: of each key the last record, and no record without a key."""
        kept = [record for record in read_records(header, body) if self._keeps(record, drops_tombstones)]
        tombstones = sum(record.value is None for record in kept)
        return Look(len(kept), tombstones, max((record.timestamp_ms for record in kept), default=NO_TIMESTAMP))

    def rewrite(self, header: BatchHeader, body: Buffer, drops_tombstones: bool, base_timestamp: int) -> Buffer:
        """The records that `look` counts, byte for byte but for their timestamps, if the batch gets another base. What
        the records of LogAppendTime say of their time means nothing, and stays."""
        kept = bytearray()
        view = memoryview(body)
        for record, at, end in _with_places(header, view):
            if not self._keeps(record, drops_tombstones):
                continue
            content = view[at:end]
            if base_timestamp != header.base_timestamp and not header.is_log_append_time:
                content = _with_base(record.timestamp_ms, base_timestamp, content)
            append_varint(kept, len(content))
            kept += content
        return kept

    def note_batches(self, data: memoryview, next_offset: int) -> tuple[int, int]:
        """Bytes taken, and the offset after them."""
        return 0, next_offset

    def sift_batches(self, data: memoryview, next_offset: int, sifting: Sifting, hole: Hole | None) -> Sifted | None:
        """None: the first batch needs the general way."""
        return None

    def _keeps(self, record: Record, drops_tombstones: bool) -> bool:
        if record.key is None or record.offset < self._offsets.get(self._hash(record.key), -1):
            return False
        return record.value is not None or not drops_tombstones

    def _hash(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=16, key=self._hash_key).digest()


def with_base_timestamp(header: BatchHeader, body: Buffer, base_timestamp: int) -> Buffer:
    """All records of a batch that gets another base."""
    moved = bytearray()
    for record, at, end in _with_places(header, memoryview(body)):
        content = memoryview(body)[at:end]
        if not header.is_log_append_time:
            content = _with_base(record.timestamp_ms, base_timestamp, content)
        append_varint(moved, len(content))
        moved += content
    return moved


def _with_places(header: BatchHeader, body: memoryview) -> Iterator[tuple[Record, int, int]]:
    """Each record, and where its content begins and ends, behind its length."""
    end = 0
    for record in read_records(header, body):
        length, at = read_varint(body, end, len(body))
        end = at + length
        yield record, at, end


def _with_base(timestamp_ms: int, base_timestamp: int, content: memoryview) -> memoryview:
    delta = timestamp_ms - base_timestamp
    if not INT64_MIN <= delta <= INT64_MAX:
        raise CorruptRecords("two timestamps of a batch are further apart than 64 bits")
    _, after = read_varlong(content, 1, len(content))
    changed = bytearray(content[:1])
    append_varint(changed, delta)
    changed += content[after:]
    return memoryview(changed)


class AnyKeyMap(Protocol):
    def __len__(self) -> int: ...

    def has_room_for(self, keys: int) -> bool: ...

    def note(self, header: BatchHeader, body: Buffer) -> None: ...

    def look(self, header: BatchHeader, body: Buffer, drops_tombstones: bool) -> Look: ...

    def rewrite(self, header: BatchHeader, body: Buffer, drops_tombstones: bool, base_timestamp: int) -> Buffer: ...

    def note_batches(self, data: memoryview, next_offset: int) -> tuple[int, int]: ...

    def sift_batches(
        self, data: memoryview, next_offset: int, sifting: Sifting, hole: Hole | None
    ) -> Sifted | None: ...


def keys_that_fit(size_bytes: int) -> int:
    return max(int(size_bytes / ENTRY_BYTES * LOAD_MAX), 1)


def new_key_map(keys_max: int, hash_key: bytes) -> AnyKeyMap:
    try:
        from ottla.records import _key_map
    except ImportError:
        return KeyMap(keys_max, hash_key)
    return _key_map.KeyMap(keys_max, hash_key)

"""Maps each key in a part of a log to its last offset, in bounded memory, and decides which records remain.

A key is identified by 16 bytes of a keyed hash. A collision would cost one of the two keys its value. The hash's key is
therefore known only to this process, and a collision is as likely as guessing 128 bits.

`KeyMap` is the pure Python version of the compiled one, and its test oracle; `new_key_map` chooses one. Only the
compiled one processes many batches at once: `note_batches` and `sift_batches` take the leading batches of a piece of a
segment that need no special treatment, and leave the others to the general path, one by one. The pure Python version
leaves all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

from ottla.protocol.records.batch import BatchHeader, Buffer
from ottla.protocol.records.envelope import INT64_MAX, INT64_MIN
from ottla.protocol.records.errors import CorruptRecords
from ottla.protocol.records.record import Record, read_records
from ottla.protocol.records.varint import append_varint, read_varint, read_varlong

ENTRY_BYTES = 24
"""Size of an entry: hash and offset."""
LOAD_MAX = 0.75
NO_TIMESTAMP = -1


class Look(NamedTuple):
    """The records that a batch keeps."""

    records: int
    tombstones: int
    """The number of tombstones among them."""
    max_timestamp: int
    """The highest timestamp of the kept records; -1 if there are none."""


class Hole(NamedTuple):
    """Removed batches that have no placeholder yet."""

    first_offset: int
    next_offset: int
    leader_epoch: int


class Sifting(NamedTuple):
    """The parameters that decide about a batch, besides the keys."""

    upto: int
    """Batches that reach above this offset stay as they are, because not all of their keys are known."""
    now_ms: int
    horizon_ms: int
    """The delete horizon of tombstones that are seen for the first time."""
    last_batches: Sequence[int]
    """The base offset of the last batch of each producer, in ascending order."""


class Sifted(NamedTuple):
    """The result of sifting the leading batches of a piece."""

    taken_bytes: int
    next_offset: int
    data: bytes
    base_offsets: list[int]
    positions: list[int]
    """Position of each batch in `data`."""
    max_timestamps: list[int]
    hole: Hole | None
    removed_records: int
    changed: bool


class KeyMap:
    """The pure Python key map."""

    def __init__(self, keys_max: int, hash_key: bytes) -> None:
        self._keys_max = keys_max
        self._hash_key = hash_key
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def has_room_for(self, keys: int) -> bool:
        """Reports whether this many more keys fit."""
        return len(self._offsets) + keys <= self._keys_max

    def note(self, header: BatchHeader, body: Buffer) -> None:
        """Notes the keys of a batch, whose records follow all that were noted before. Raises CorruptRecords if it is
        malformed."""
        for record in read_records(header, body):
            if record.key is not None:
                self._offsets[self._hash(record.key)] = record.offset

    def look(self, header: BatchHeader, body: Buffer, drops_tombstones: bool) -> Look:
        """Counts the records that remain in a batch: the last one of each key, and none without a key."""
        kept = [record for record in read_records(header, body) if self._keeps(record, drops_tombstones)]
        tombstones = sum(record.value is None for record in kept)
        return Look(len(kept), tombstones, max((record.timestamp_ms for record in kept), default=NO_TIMESTAMP))

    def rewrite(self, header: BatchHeader, body: Buffer, drops_tombstones: bool, base_timestamp: int) -> Buffer:
        """Returns the records that `look` counts, unchanged except for their timestamps if the batch gets another base
        timestamp. With LogAppendTime the timestamps of records are meaningless, and stay unchanged."""
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
        """Returns the number of bytes taken and the offset after them."""
        return 0, next_offset

    def sift_batches(self, data: memoryview, next_offset: int, sifting: Sifting, hole: Hole | None) -> Sifted | None:
        """Returns None: the first batch needs the general path."""
        return None

    def _keeps(self, record: Record, drops_tombstones: bool) -> bool:
        if record.key is None or record.offset < self._offsets.get(self._hash(record.key), -1):
            return False
        return record.value is not None or not drops_tombstones

    def _hash(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=16, key=self._hash_key).digest()


def with_base_timestamp(header: BatchHeader, body: Buffer, base_timestamp: int) -> Buffer:
    """Returns all records of a batch, relative to another base timestamp."""
    moved = bytearray()
    for record, at, end in _with_places(header, memoryview(body)):
        content = memoryview(body)[at:end]
        if not header.is_log_append_time:
            content = _with_base(record.timestamp_ms, base_timestamp, content)
        append_varint(moved, len(content))
        moved += content
    return moved


def _with_places(header: BatchHeader, body: memoryview) -> Iterator[tuple[Record, int, int]]:
    """Yields each record with the start and end of its content, after its length."""
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
    """The interface of both key maps."""

    def __len__(self) -> int: ...

    def has_room_for(self, keys: int) -> bool:
        """Returns whether this many more keys fit."""
        ...

    def note(self, header: BatchHeader, body: Buffer) -> None:
        """Notes the keys of a batch, whose records follow all that were noted before. Raises CorruptRecords."""
        ...

    def look(self, header: BatchHeader, body: Buffer, drops_tombstones: bool) -> Look:
        """Counts the records that remain in a batch: the last one of each key, and none without a key."""
        ...

    def rewrite(self, header: BatchHeader, body: Buffer, drops_tombstones: bool, base_timestamp: int) -> Buffer:
        """Returns the records that `look` counts, encoded relative to the given base timestamp."""
        ...

    def note_batches(self, data: memoryview, next_offset: int) -> tuple[int, int]:
        """Notes leading batches that need no special treatment. Returns the bytes taken and the offset after them."""
        ...

    def sift_batches(self, data: memoryview, next_offset: int, sifting: Sifting, hole: Hole | None) -> Sifted | None:
        """Compacts leading batches that need no special treatment; returns None if the first one does."""
        ...


def keys_that_fit(size_bytes: int) -> int:
    """Returns how many keys fit into this much memory."""
    return max(int(size_bytes / ENTRY_BYTES * LOAD_MAX), 1)


def new_key_map(keys_max: int, hash_key: bytes) -> AnyKeyMap:
    """Returns the compiled key map if available, otherwise the pure Python one."""
    try:
        from ottla.protocol.records import _key_map
    except ImportError:
        return KeyMap(keys_max, hash_key)
    return _key_map.KeyMap(keys_max, hash_key)

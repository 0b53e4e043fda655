"""The last offset of each key of a part of a log, in bounded memory, and which records that leaves.

A key is known by 16 bytes of a keyed hash. Two keys with the same hash would cost one of them its value, so nobody but
this process knows the hash's key, and a pair is as likely as a guess of 128 bits.

`KeyMap` is the plain twin of the compiled one, and its oracle; `new_key_map` chooses.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple, Protocol

from ottla.records.batch import BatchHeader, Buffer
from ottla.records.record import Record, append_record, encode_header_keys, read_records

ENTRY_BYTES = 24
"""Hash and offset."""
LOAD_MAX = 0.75
HASH_KEY_BYTES = 16


class Look(NamedTuple):
    """What a batch keeps."""

    records: int
    tombstones: int
    """Of them, those that say that a key is gone."""
    max_timestamp: int
    """The highest timestamp among those that stay; -1 if none does."""


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

    def look(self, header: BatchHeader, body: Buffer, *, drops_tombstones: bool) -> Look:
        """What is left of a batch: of each key the last record, and no record without a key."""
        kept = [record for record in read_records(header, body) if self._keeps(record, drops_tombstones)]
        tombstones = sum(record.value is None for record in kept)
        return Look(len(kept), tombstones, max((record.timestamp_ms for record in kept), default=-1))

    def rewrite(self, header: BatchHeader, body: Buffer, *, drops_tombstones: bool, base_timestamp: int) -> Buffer:
        """The records that `look` counts, with their timestamps relative to another one."""
        kept = bytearray()
        for record in read_records(header, body):
            if self._keeps(record, drops_tombstones):
                # The timestamps of LogAppendTime are the batch's; what the records say means nothing.
                timestamp_delta = 0 if header.is_log_append_time else record.timestamp_ms - base_timestamp
                headers = encode_header_keys(record.headers)
                offset_delta = record.offset - header.base_offset
                append_record(kept, offset_delta, timestamp_delta, record.key, record.value, headers)
        return kept

    def _keeps(self, record: Record, drops_tombstones: bool) -> bool:
        if record.key is None or record.offset < self._offsets.get(self._hash(record.key), -1):
            return False
        return record.value is not None or not drops_tombstones

    def _hash(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=16, key=self._hash_key).digest()


class AnyKeyMap(Protocol):
    def __len__(self) -> int: ...

    def has_room_for(self, keys: int) -> bool: ...

    def note(self, header: BatchHeader, body: Buffer) -> None: ...

    def look(self, header: BatchHeader, body: Buffer, *, drops_tombstones: bool) -> Look: ...

    def rewrite(self, header: BatchHeader, body: Buffer, *, drops_tombstones: bool, base_timestamp: int) -> Buffer: ...


def new_key_map(size_bytes_max: int, keys_wanted: int, hash_key: bytes) -> AnyKeyMap:
    """For as many keys as are wanted, or as the memory allows."""
    keys_max = max(min(keys_wanted, int(size_bytes_max / ENTRY_BYTES * LOAD_MAX)), 1)
    return KeyMap(keys_max, hash_key)

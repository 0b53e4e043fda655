"""Appliers hold the state that a log is replayed into: in memory here, in SQLite in `sqlite_appliers`."""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from ottla.recovery.entries import Kind

DIGEST_BYTES = 16
FRAME_BYTES = 1 << 20
_FRAME = struct.Struct("<BI")
_LENGTHS = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Position:
    """How far a state has advanced in its log."""

    next_offset: int = 0
    """The state contains everything that was committed before this offset."""
    begin_offset: int = 0
    """Where to resume reading: the first entry of the oldest transaction open at `next_offset`, else `next_offset`."""
    transaction_max: int = 0
    """The highest transaction id in the state."""
    timestamp_ms_max: int = -1
    """The latest timestamp of a record before `next_offset`."""


class Run(NamedTuple):
    """Consecutive changes of one kind to one table. A STATEMENT has no table and empty keys."""

    kind: int
    table: str
    keys: list[bytes]
    payloads: list[bytes]


class Runs:
    """Groups changes into runs and keeps their order."""

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def of(self, kind: int, table: str) -> Run:
        """Returns the run that takes changes of this kind to this table: the last run, or a new one."""
        runs = self.runs
        if not runs or runs[-1].kind != kind or runs[-1].table != table:
            runs.append(Run(kind, table, [], []))
        return runs[-1]

    def add(self, kind: int, table: str, key: bytes, payload: bytes) -> None:
        """Appends one change to the last run, or to a new run if it does not fit there."""
        run = self.of(kind, table)
        run.keys.append(key)
        run.payloads.append(payload)


class Applier(Protocol):
    """A state that changes only by applying a log.

    An applier is never called by two threads at once. `RowTables` and `SqliteApplier` are appliers; a minimal one of
    your own applies each run and remembers nothing else:

        class Counter:
            count = 0

            def apply(self, runs, position):
                self.count += sum(len(run.keys) for run in runs)

            ...  # position, dump, load, clear, digest
    """

    def apply(self, runs: Sequence[Run], position: Position) -> None:
        """Applies whole transactions in log order. `position` is the position of the state afterwards.

        A durable state must store the position in the same transaction as the changes.
        """
        ...

    def position(self) -> Position | None:
        """Returns the position of the state found when the applier was opened, or None if that state is empty."""
        ...

    def dump(self) -> Iterable[bytes]:
        """Returns the state as of this call in frames of about a megabyte. Later changes are not included."""
        ...

    def load(self, frames: Iterable[bytes], position: Position) -> None:
        """Replaces the state. If a frame is damaged, the iterator raises and the state stays as it was."""
        ...

    def clear(self) -> None:
        """Empties the state."""
        ...

    def digest(self) -> bytes:
        """Returns a checksum of the whole state. Equal states have equal checksums on every machine."""
        ...


@runtime_checkable
class ByKeyApplier(Applier, Protocol):
    """An applier that several processes can replay for; each reduces a part of the log to its last changes.

    class Cache(RowTables):
        def by_key(self):
            return True  # a row depends only on the last change of its key
    """

    def by_key(self) -> bool:
        """Returns whether only the last change of a key matters, independent of earlier changes and of other keys.

        This is checked again after every entry that is not a change of a key, because a statement may change the
        answer.
        """
        ...


class RowTables:
    """Row images in memory, as `tables[name][key]`. The table with the empty name is also available as `rows`.

    Example:

        tables = RowTables()
        await recover(log, tables)
        tables.rows[b"user-1"]              # entries written without a table
        tables.tables["orders"][b"17"]
    """

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.tables: dict[str, dict[bytes, bytes]] = {"": self.rows}

    def apply(self, runs: Sequence[Run], position: Position) -> None:
        """Applies PUT and DELETE runs. Raises ValueError for statements."""
        for run in runs:
            rows = self.tables.setdefault(run.table, {})
            if run.kind == Kind.PUT:
                rows.update(zip(run.keys, run.payloads, strict=True))
            elif run.kind == Kind.DELETE:
                for key in run.keys:
                    rows.pop(key, None)
            else:
                raise ValueError("these tables hold row images only; statements need a database")

    def position(self) -> Position | None:
        """Returns None: a state in memory does not survive its process."""
        return None

    def by_key(self) -> bool:
        """Returns True: a row is determined by its last change."""
        return True

    def dump(self) -> Iterable[bytes]:
        """Copies the tables and returns them as frames."""
        return _frames({name: dict(rows) for name, rows in self.tables.items()})

    def load(self, frames: Iterable[bytes], position: Position) -> None:
        """Replaces all tables by those in the frames."""
        tables: dict[str, dict[bytes, bytes]] = {"": {}}
        for frame in frames:
            name, pairs = _unpack(frame)
            tables.setdefault(name, {}).update(pairs)
        self.tables, self.rows = tables, tables[""]

    def clear(self) -> None:
        """Removes all tables."""
        self.rows = {}
        self.tables = {"": self.rows}

    def digest(self) -> bytes:
        """Returns a checksum of all rows, in the order of tables and keys."""
        found = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for name in sorted(self.tables):
            rows = self.tables[name]
            for key in sorted(rows):
                image = rows[key]
                found.update(_LENGTHS.pack(len(key), len(image)) + key + image)
            if rows:
                found.update(name.encode() + _LENGTHS.pack(len(name), len(rows)))
        return found.digest()


def _frames(tables: dict[str, dict[bytes, bytes]]) -> Iterator[bytes]:
    for name, rows in tables.items():
        keys: list[bytes] = []
        images: list[bytes] = []
        size_bytes = 0
        for key, image in rows.items():
            keys.append(key)
            images.append(image)
            size_bytes += len(key) + len(image)
            if size_bytes >= FRAME_BYTES:
                yield _pack(name, keys, images)
                keys, images, size_bytes = [], [], 0
        if keys:
            yield _pack(name, keys, images)


def _pack(name: str, keys: list[bytes], images: list[bytes]) -> bytes:
    """Encodes one frame: u8 name length, u32 pair count, name, u32 key lengths, u32 image lengths, keys, images."""
    lengths = array("I", map(len, keys))
    lengths.extend(map(len, images))
    _little_endian(lengths)
    encoded = name.encode()
    head = _FRAME.pack(len(encoded), len(keys)) + encoded + lengths.tobytes()
    return b"".join([head, *keys, *images])


def _unpack(frame: bytes) -> tuple[str, Iterator[tuple[bytes, bytes]]]:
    """Decodes a frame whose checksum was already verified."""
    name_bytes, count = _FRAME.unpack_from(frame)
    at = _FRAME.size + name_bytes
    name = frame[_FRAME.size : at].decode()
    lengths = array("I", frame[at : at + 8 * count])
    _little_endian(lengths)
    at += 8 * count
    cut: list[bytes] = []
    for length in lengths:
        cut.append(frame[at : at + length])
        at += length
    return name, zip(cut[:count], cut[count:], strict=True)


def _little_endian(numbers: array[int]) -> None:
    """Converts to or from little endian, the byte order of snapshots, which may come from another machine."""
    if sys.byteorder == "big":
        numbers.byteswap()

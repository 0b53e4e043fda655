"""Appliers: the state that a log is replayed into. In memory here; in SQLite in `sqlite_appliers`."""

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
    """How far a state has come in its log."""

    next_offset: int = 0
    """All that was committed before this offset is in the state."""
    begin_offset: int = 0
    """Where to read from: the first entry of the oldest transaction that was open at `next_offset`, or that offset."""
    transaction_max: int = 0
    """The highest id of a transaction that is in the state."""
    timestamp_ms_max: int = -1
    """The latest time of a record before `next_offset`."""


class Run(NamedTuple):
    """Changes of one kind to one table that follow one another. A STATEMENT has no table and empty keys."""

    kind: int
    table: str
    keys: list[bytes]
    payloads: list[bytes]


class Runs:
    """Changes in their order, gathered into runs."""

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def of(self, kind: int, table: str) -> Run:
        """The run that changes of this kind go to: the last one, or a new one."""
        runs = self.runs
        if not runs or runs[-1].kind != kind or runs[-1].table != table:
            runs.append(Run(kind, table, [], []))
        return runs[-1]

    def add(self, kind: int, table: str, key: bytes, payload: bytes) -> None:
        run = self.of(kind, table)
        run.keys.append(key)
        run.payloads.append(payload)


class Applier(Protocol):
    """A state that changes in one way only. Not called by two threads at once."""

    def apply(self, runs: Sequence[Run], position: Position) -> None:
        """Whole transactions, in the order of the log. `position` is where the state is afterwards.

        A state that outlives the process keeps it together with the changes, in one transaction of its own.
        """
        ...

    def position(self) -> Position | None:
        """Where the state stands that this applier found when it was opened; None if it is empty."""
        ...

    def dump(self) -> Iterable[bytes]:
        """The state as it is at this call, in frames of about a megabyte; changes that come later are not in it."""
        ...

    def load(self, frames: Iterable[bytes], position: Position) -> None:
        """Replaces the state. The iterator raises if a frame is damaged: the state then stays as it was."""
        ...

    def clear(self) -> None: ...

    def digest(self) -> bytes:
        """A checksum of the whole state, the same for equal states wherever they are."""
        ...


@runtime_checkable
class ByKeyApplier(Applier, Protocol):
    """One that several processes can replay for: each finds the last changes of a part of the log."""

    def by_key(self) -> bool:
        """Whether nothing but the last change of a key counts: not those before it, and not those of other keys.

        Asked again after each entry that is not the change of a key: a statement may make an end of it.
        """
        ...


class RowTables:
    """Tables of row images in memory: `tables[name][key]`. The table without a name is `rows`."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.tables: dict[str, dict[bytes, bytes]] = {"": self.rows}

    def apply(self, runs: Sequence[Run], position: Position) -> None:
        for run in runs:
            rows = self.tables.setdefault(run.table, {})
            if run.kind == Kind.PUT:
                rows.update(zip(run.keys, run.payloads, strict=True))
            elif run.kind == Kind.DELETE:
                for key in run.keys:
                    rows.pop(key, None)
            else:
                raise ValueError("these tables hold row images; statements are for a database")

    def position(self) -> Position | None:
        return None

    def by_key(self) -> bool:
        return True

    def dump(self) -> Iterable[bytes]:
        return _frames({name: dict(rows) for name, rows in self.tables.items()})

    def load(self, frames: Iterable[bytes], position: Position) -> None:
        tables: dict[str, dict[bytes, bytes]] = {"": {}}
        for frame in frames:
            name, pairs = _unpack(frame)
            tables.setdefault(name, {}).update(pairs)
        self.tables, self.rows = tables, tables[""]

    def clear(self) -> None:
        self.rows = {}
        self.tables = {"": self.rows}

    def digest(self) -> bytes:
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
    """u8 length of the name, u32 pairs, the name, u32 lengths of keys, u32 lengths of images, keys, images."""
    lengths = array("I", map(len, keys))
    lengths.extend(map(len, images))
    _little_endian(lengths)
    encoded = name.encode()
    head = _FRAME.pack(len(encoded), len(keys)) + encoded + lengths.tobytes()
    return b"".join([head, *keys, *images])


def _unpack(frame: bytes) -> tuple[str, Iterator[tuple[bytes, bytes]]]:
    """Of a frame whose checksum was right."""
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
    """To or from the order of bytes in a snapshot, which may have come from another machine."""
    if sys.byteorder == "big":
        numbers.byteswap()

"""Decodes the messages of PostgreSQL's output plugin `pgoutput`, protocol version 1. Pure.

Rows are lists of column values in text form: bytes, None for NULL, and UNCHANGED for a large value that an update did
not change and that PostgreSQL therefore did not read.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ottla.connect.failures import ConnectorError

UNCHANGED: Final = b"\xff__unchanged__"
"""A marker that is compared by identity. No UTF-8 text begins with these bytes."""
Value = bytes | None
Row = list[Value]

_LENGTH = struct.Struct(">i")
_UINT16 = struct.Struct(">H")
_UINT32 = struct.Struct(">I")
_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">BQQq")
_TRUNCATE = struct.Struct(">IB")
_NULL, _UNCHANGED, _TEXT = b"nut"
_NEW, _OLD, _KEY = b"NOK"


class Begin(NamedTuple):
    """The start of a transaction."""

    commit_lsn: int
    committed_us: int
    """Commit time in microseconds since 2000."""
    xid: int


class Commit(NamedTuple):
    """The end of a transaction."""

    commit_lsn: int
    end_lsn: int
    """The end of the commit record: the LSN to confirm when the whole transaction is durable."""


class Column(NamedTuple):
    """A column of a relation message."""

    name: str
    type_oid: int
    type_modifier: int
    is_key: bool
    """Whether the column is part of the replica identity: by default the primary key, with FULL every column."""


class Relation(NamedTuple):
    """The schema of a table, sent before its first change and after each change of the schema."""

    oid: int
    schema: str
    table: str
    identity: str
    """The replica identity. d: the primary key, i: an index, f: the full row, n: nothing."""
    columns: tuple[Column, ...]


class Insert(NamedTuple):
    """A row was inserted. `oid` is that of its table."""

    oid: int
    new: Row


class Update(NamedTuple):
    """A row was updated."""

    oid: int
    old: Row | None
    """The old row, with only the key if `has_full_old` is false. None if the key has not changed and the identity is
    not FULL."""
    has_full_old: bool
    new: Row


class Delete(NamedTuple):
    """A row was deleted. `old` has only the key columns unless `has_full_old` is true."""

    oid: int
    old: Row
    has_full_old: bool


class Truncate(NamedTuple):
    """Tables were truncated together. The flags are those of the TRUNCATE statement."""

    oids: tuple[int, ...]
    cascades: bool
    restarts_identity: bool


Message = Begin | Commit | Relation | Insert | Update | Delete | Truncate


def decode(data: bytes) -> Message | None:
    """Decodes a message. Returns None for messages that are not about rows, such as types and origins."""
    kind = data[0]
    if kind == 0x49:  # I
        return Insert(_UINT32.unpack_from(data, 1)[0], read_row(data, 6)[0])
    if kind == 0x55:  # U
        return _update(data)
    if kind == 0x44:  # D
        return Delete(_UINT32.unpack_from(data, 1)[0], read_row(data, 6)[0], data[5] == _OLD)
    if kind == 0x42:  # B
        return Begin(*_BEGIN.unpack_from(data, 1))
    if kind == 0x43:  # C
        _, commit_lsn, end_lsn, _ = _COMMIT.unpack_from(data, 1)
        return Commit(commit_lsn, end_lsn)
    if kind == 0x52:  # R
        return _relation(data)
    if kind == 0x54:  # T
        count, options = _TRUNCATE.unpack_from(data, 1)
        oids = struct.unpack_from(f">{count}I", data, 6)
        return Truncate(oids, bool(options & 1), bool(options & 2))
    if kind in b"YOM":
        return None
    raise ConnectorError(f"pgoutput sent a message of an unknown kind: {kind:#x}")


def _update(data: bytes) -> Update:
    oid, kind = _UINT32.unpack_from(data, 1)[0], data[5]
    if kind == _NEW:
        return Update(oid, None, False, read_row(data, 6)[0])
    old, at = read_row(data, 6)
    return Update(oid, old, kind == _OLD, read_row(data, at + 1)[0])


def read_row(data: bytes, at: int) -> tuple[Row, int]:
    """Returns the values of a row, and the offset at which they end."""
    row: Row = []
    add, length_at = row.append, _LENGTH.unpack_from
    count = _UINT16.unpack_from(data, at)[0]
    at += 2
    for _ in range(count):
        kind = data[at]
        if kind == _TEXT:
            begin = at + 5
            at = begin + length_at(data, at + 1)[0]
            add(data[begin:at])
        else:
            add(None if kind == _NULL else UNCHANGED)
            at += 1
    return row, at


def _relation(data: bytes) -> Relation:
    oid = _UINT32.unpack_from(data, 1)[0]
    schema, at = _string(data, 5)
    table, at = _string(data, at)
    identity, count = chr(data[at]), _UINT16.unpack_from(data, at + 1)[0]
    at += 3
    columns = []
    for _ in range(count):
        is_key = bool(data[at] & 1)
        name, at = _string(data, at + 1)
        type_oid, modifier = struct.unpack_from(">Ii", data, at)
        at += 8
        columns.append(Column(name, type_oid, modifier, is_key))
    return Relation(oid, schema or "pg_catalog", table, identity, tuple(columns))


def _string(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1

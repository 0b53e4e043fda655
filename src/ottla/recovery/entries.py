"""The format of log entries: row images (physical), statements (logical) and transaction markers.

An entry is the value of one record. Version 1, little endian:

    u8   version (high half), kind (low three bits), and in bit 3 whether a checksum follows
    u8   length of the table name
    u16  length of the key
    u64  transaction id; 0 means that the entry is a transaction by itself
    then the table name (UTF-8), the key, the payload, and if bit 3 is set a u32, the CRC32C of all preceding bytes

    kind           payload
    0  NOTHING     empty; a heartbeat of the writer
    1  PUT         the row after the change
    2  DELETE      empty
    3  STATEMENT   the statement and its parameters, in JSON
    4  COMMIT      u32 number of entries in the transaction, u32 CRC32C of those entries, concatenated
    5  ABORT       empty
    6  TAKEOVER    u64 epoch of a new writer; transactions that are open at this entry are never committed
    7  DIGEST      the checksum of the whole state after everything that was committed before this entry

Record batches have their own CRC, so the entry checksum is only for logs without one. Readers reject versions that they
do not know, because half a history is worse than none.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TypeAlias

from crc32c import crc32c

from ottla.recovery.errors import DamagedEntryError

VERSION = 1
CHECKSUM_FLAG = 0x08
HEADER = struct.Struct("<BBHQ")
CRC = struct.Struct("<I")
COMMIT_PAYLOAD = struct.Struct("<II")
EPOCH = struct.Struct("<Q")
KEY_BYTES_MAX = (1 << 16) - 1
TABLE_BYTES_MAX = (1 << 8) - 1
TRANSACTION_MAX = (1 << 64) - 1

Parameter: TypeAlias = int | float | str | bytes | None


class Kind(IntEnum):
    """The kind of a log entry; the module docstring describes the payloads."""

    NOTHING = 0
    PUT = 1
    DELETE = 2
    STATEMENT = 3
    COMMIT = 4
    ABORT = 5
    TAKEOVER = 6
    DIGEST = 7


Change: TypeAlias = tuple[int, str, bytes, bytes]
"""(kind, table, key, payload) of a PUT, a DELETE or a STATEMENT."""

CHANGES = frozenset({int(Kind.PUT), int(Kind.DELETE), int(Kind.STATEMENT)})


def encode(
    kind: Kind, table: str = "", key: bytes = b"", payload: bytes = b"", *, transaction: int = 0, checksum: bool = False
) -> bytes:
    """Encodes one entry. Raises ValueError if the table name, the key or the transaction id is too large."""
    name = table.encode()
    if len(name) > TABLE_BYTES_MAX:
        raise ValueError(f"the name of a table has at most {TABLE_BYTES_MAX} bytes: {table[:40]!r}... has {len(name)}")
    if len(key) > KEY_BYTES_MAX:
        raise ValueError(f"a key has at most {KEY_BYTES_MAX} bytes, this one has {len(key)}")
    if not 0 <= transaction <= TRANSACTION_MAX:
        raise ValueError(f"a transaction id is between 0 and {TRANSACTION_MAX}: {transaction}")
    first = VERSION << 4 | kind | (CHECKSUM_FLAG if checksum else 0)
    data = HEADER.pack(first, len(name), len(key), transaction) + name + key + payload
    return data + CRC.pack(crc32c(data)) if checksum else data


def put(key: bytes, image: bytes, *, table: str = "", transaction: int = 0, checksum: bool = False) -> bytes:
    """Returns an entry that stores `image` as the row with this key."""
    return encode(Kind.PUT, table, key, image, transaction=transaction, checksum=checksum)


def delete(key: bytes, *, table: str = "", transaction: int = 0, checksum: bool = False) -> bytes:
    """Returns an entry that deletes the row with this key."""
    return encode(Kind.DELETE, table, key, transaction=transaction, checksum=checksum)


def statement(sql: str, parameters: Sequence[Parameter] = (), *, transaction: int = 0, checksum: bool = False) -> bytes:
    """Returns an entry that executes a SQL statement.

    The statement must be deterministic, because it is executed again at every replay: no clock, no random(), and no
    dependence on an order without ORDER BY.
    """
    payload = json_values([sql, *parameters])
    return encode(Kind.STATEMENT, payload=payload, transaction=transaction, checksum=checksum)


def commit(transaction: int, entries: Sequence[bytes], *, checksum: bool = False) -> bytes:
    """Returns the commit marker that follows all entries of this transaction. `entries` must be in log order."""
    payload = COMMIT_PAYLOAD.pack(len(entries), crc_of(entries))
    return encode(Kind.COMMIT, payload=payload, transaction=transaction, checksum=checksum)


def abort(transaction: int) -> bytes:
    """Returns an entry that aborts an open transaction."""
    return encode(Kind.ABORT, transaction=transaction)


def takeover(epoch: int) -> bytes:
    """Returns the entry that a new writer appends first; it aborts all open transactions."""
    return encode(Kind.TAKEOVER, payload=EPOCH.pack(epoch))


def digest(checksum_of_state: bytes) -> bytes:
    """Returns an entry with the checksum of the whole state, which every replay compares with its own."""
    return encode(Kind.DIGEST, payload=checksum_of_state)


def transaction_entries(transaction: int, changes: Iterable[Change], *, checksum: bool = False) -> list[bytes]:
    """Returns all entries of a transaction followed by its commit marker, ready for one atomic append."""
    entries = [
        encode(Kind(kind), table, key, payload, transaction=transaction, checksum=checksum)
        for kind, table, key, payload in changes
    ]
    return [*entries, commit(transaction, entries, checksum=checksum)]


def crc_of(entries: Iterable[bytes], before: int = 0) -> int:
    """Returns the CRC32C of the entries, concatenated and continued from `before`."""
    for entry in entries:
        before = crc32c(entry, before)
    return before


def decode(data: bytes, offset: int) -> tuple[int, int, str, bytes, bytes]:
    """Returns (kind, transaction, table, key, payload). Raises DamagedEntryError with the offset."""
    if len(data) < HEADER.size:
        raise DamagedEntryError(offset, f"it has {len(data)} bytes; an entry has at least {HEADER.size}")
    first, table_bytes, key_bytes, transaction = HEADER.unpack_from(data)
    kind = first & 0x07
    if first >> 4 != VERSION:
        raise DamagedEntryError(offset, f"format version {first >> 4} is not supported, only {VERSION}")
    end = len(data)
    if first & CHECKSUM_FLAG:
        end -= CRC.size
        if end < HEADER.size or CRC.unpack_from(data, end)[0] != crc32c(memoryview(data)[:end]):
            raise DamagedEntryError(offset, "its checksum does not match")
    key_at = HEADER.size + table_bytes
    payload_at = key_at + key_bytes
    if payload_at > end:
        raise DamagedEntryError(offset, f"its key would end after the entry, at {payload_at} of {end} bytes")
    try:
        table = data[HEADER.size : key_at].decode() if table_bytes else ""
    except UnicodeDecodeError:
        raise DamagedEntryError(offset, "the name of its table is not UTF-8") from None
    return kind, transaction, table, data[key_at:payload_at], data[payload_at:end]


def json_values(values: Sequence[Parameter]) -> bytes:
    """Encodes SQLite values as a JSON array, with bytes as {"base64": ...}."""
    return json.dumps(
        [{"base64": base64.b64encode(each).decode()} if isinstance(each, bytes) else each for each in values],
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()


def values_of(payload: bytes) -> list[Parameter]:
    """Decodes the output of `json_values`. Raises ValueError for anything but a JSON array."""
    found = json.loads(payload)
    if not isinstance(found, list):
        raise ValueError("not a JSON array")
    if b'{"base64":' not in payload:
        return found
    return [base64.b64decode(each["base64"]) if isinstance(each, dict) else each for each in found]

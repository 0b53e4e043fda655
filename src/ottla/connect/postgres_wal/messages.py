"""The messages of a replication stream, inside the protocol's CopyData.

From the server: WAL (`w`) and keepalives (`k`). From us: how far WAL is safe (`r`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ottla.connect.postgres_wal.positions import NO_LSN, POSTGRES_EPOCH_UNIX_US, Lsn

_WAL = struct.Struct(">cQQq")
_KEEPALIVE = struct.Struct(">cQqB")
_STATUS = struct.Struct(">cQQQqB")


@dataclass(frozen=True, slots=True)
class WalData:
    start: Lsn
    server_end: Lsn
    sent_unix_us: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class Keepalive:
    server_end: Lsn
    sent_unix_us: int
    wants_reply: bool


class ProtocolError(Exception):
    """The server sent what this program does not know."""


def decode(message: memoryview) -> WalData | Keepalive:
    kind = bytes(message[:1])
    if kind == b"w" and len(message) >= _WAL.size:
        _, start, end, sent_us = _WAL.unpack_from(message)
        return WalData(Lsn(start), Lsn(end), sent_us + POSTGRES_EPOCH_UNIX_US, message[_WAL.size :])
    if kind == b"k" and len(message) >= _KEEPALIVE.size:
        _, end, sent_us, wants_reply = _KEEPALIVE.unpack_from(message)
        return Keepalive(Lsn(end), sent_us + POSTGRES_EPOCH_UNIX_US, bool(wants_reply))
    raise ProtocolError(f"the server sent a message of {len(message)} bytes of the unknown kind {kind!r}")


def status_update(flushed: Lsn, now_unix_us: int, *, wants_reply: bool = False) -> bytes:
    """WAL below `flushed` is safe.

    It stands for "written" too, so that synchronous_commit=remote_write is not answered with what only this process
    has; and nothing is ever applied here, so remote_apply gets no answer, as from pg_receivewal.
    """
    return _STATUS.pack(b"r", flushed, flushed, NO_LSN, now_unix_us - POSTGRES_EPOCH_UNIX_US, wants_reply)

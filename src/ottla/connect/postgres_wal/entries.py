"""What one record of the log holds: a piece of WAL, a timeline's history, or the mark of a gap.

Each names the server's system id, so that two databases never mix in one log, and where it belongs, so that a gap or
a doubling shows by itself. The key (timeline, LSN) never goes back from record to record: a position is found by
bisection, and a server on a timeline that others have left is refused.

    0 magic "PGW1"  4 kind  5 zeros  8 system id  16 timeline  20 zeros  24 LSN  32 unix time in us  40 bytes
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from ottla.connect.postgres_wal.failures import RefusedError
from ottla.connect.postgres_wal.positions import Lsn, TimelineId

MAGIC = b"PGW1"
_HEADER = struct.Struct(">4sB3xQI4xQq")
HEADER_BYTES = _HEADER.size


class Kind(IntEnum):
    WAL = 1
    HISTORY = 2  # the timeline's history file; its LSN is where the timeline begins
    GAP = 3  # WAL before this LSN is missing; the bytes say why


class ForeignEntryError(RefusedError):
    """A record that is not of this kind of log."""


@dataclass(frozen=True, slots=True)
class Entry:
    kind: Kind
    system_id: int
    timeline: TimelineId
    start: Lsn
    sent_unix_us: int
    data: bytes | memoryview

    @property
    def end(self) -> Lsn:
        """Where the next piece of WAL begins."""
        return Lsn(self.start + len(self.data)) if self.kind is Kind.WAL else self.start

    @property
    def key(self) -> tuple[TimelineId, Lsn]:
        return self.timeline, self.start

    def encode(self) -> bytes:
        header = _HEADER.pack(MAGIC, self.kind, self.system_id, self.timeline, self.start, self.sent_unix_us)
        return b"".join((header, self.data))


def decode(data: bytes | memoryview) -> Entry:
    if len(data) < HEADER_BYTES or bytes(data[:4]) != MAGIC:
        raise ForeignEntryError("this log holds records that are no WAL of PostgreSQL; name another one with --log")
    _, kind, system_id, timeline, start, sent_us = _HEADER.unpack_from(data)
    try:
        known = Kind(kind)
    except ValueError:
        raise ForeignEntryError(f"a newer version of ottla wrote this log (kind {kind}); use that version") from None
    return Entry(known, system_id, TimelineId(timeline), Lsn(start), sent_us, memoryview(data)[HEADER_BYTES:])

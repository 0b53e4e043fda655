"""The format of the log's records: a piece of WAL, a timeline history, or a gap marker.

Each record contains the server's system id, so that two databases are never mixed in one log, and its position, so that
gaps and duplicates are detectable. The key (timeline, LSN) never decreases from record to record. So positions can be
found by binary search, and a server on an abandoned timeline is rejected.

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
    """The kinds of records."""

    WAL = 1
    HISTORY = 2  # the timeline's history file; the LSN is where the timeline begins
    GAP = 3  # WAL before this LSN is missing; the data says why


class ForeignEntryError(RefusedError):
    """A record that this kind of log does not contain."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of the log."""

    kind: Kind
    system_id: int
    timeline: TimelineId
    start: Lsn
    sent_unix_us: int
    data: bytes | memoryview

    @property
    def end(self) -> Lsn:
        """The LSN at which the next piece of WAL begins."""
        return Lsn(self.start + len(self.data)) if self.kind is Kind.WAL else self.start

    @property
    def key(self) -> tuple[TimelineId, Lsn]:
        """The timeline and the first LSN, which order the entries of a log."""
        return self.timeline, self.start

    def encode(self) -> bytes:
        """Returns the bytes of the log's record: a fixed header, then the data."""
        header = _HEADER.pack(MAGIC, self.kind, self.system_id, self.timeline, self.start, self.sent_unix_us)
        return b"".join((header, self.data))


def decode(data: bytes | memoryview) -> Entry:
    """Decodes a record. Raises ForeignEntryError."""
    if len(data) < HEADER_BYTES or bytes(data[:4]) != MAGIC:
        raise ForeignEntryError("this log contains records that are not PostgreSQL WAL; choose another log with --log")
    _, kind, system_id, timeline, start, sent_us = _HEADER.unpack_from(data)
    try:
        known = Kind(kind)
    except ValueError:
        raise ForeignEntryError(f"a newer version of ottla wrote this log (kind {kind}); use that version") from None
    return Entry(known, system_id, TimelineId(timeline), Lsn(start), sent_us, memoryview(data)[HEADER_BYTES:])

"""Navigates a log of snapshots and transactions without reading all of it: from the end, and from each snapshot to the
previous one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ottla.connect.failures import NeedsHelpError
from ottla.connect.log_ports import SyncReadableLog
from ottla.connect.sqlite.entries import NO_OFFSET, DamagedEntryError, Kind, Part, decode, link

_FIRST_WINDOW = 4
_LARGEST_WINDOW = 256


@dataclass(frozen=True, slots=True)
class LogItem:
    """A complete snapshot or transaction, identified by its last part."""

    offset: int
    part: Part
    link: bytes

    @property
    def first_offset(self) -> int:
        """The offset of its first part. Parts are contiguous, because the log has a single writer."""
        return self.offset - self.part.number

    @property
    def newest_snapshot_offset(self) -> int:
        """The offset of the snapshot that this item is, or of the last one before it."""
        return self.first_offset if self.part.kind is Kind.SNAPSHOT else self.part.snapshot_offset


def read_part(offset: int, data: bytes) -> Part:
    """Decodes a header. Raises NeedsHelpError if the entry is damaged."""
    try:
        return decode(data)
    except DamagedEntryError as damage:
        raise NeedsHelpError(
            f"the entry at offset {offset} of the log cannot be used: {damage}. If this log belongs to "
            "something else, choose another one with --log"
        ) from damage


def last_item(log: SyncReadableLog) -> LogItem | None:
    """Returns the last complete item; None if there is none."""
    tail = log.tail()
    until, window = tail.end_offset, _FIRST_WINDOW
    while until > tail.start_offset:
        first = max(tail.start_offset, until - window)
        before = first
        entries = [entry for chunk in log.read_chunks(first, until) for entry in chunk]
        for entry in reversed(entries):
            part = read_part(entry.offset, entry.data)
            if part.is_last:
                return LogItem(entry.offset, part, link(entry.data))
            # This item was never finished: continue before its first part.
            before = min(before, entry.offset - part.number)
        until, window = before, min(2 * window, _LARGEST_WINDOW)
    return None


def snapshots(log: SyncReadableLog, last: LogItem) -> Iterator[tuple[int, Part]]:
    """Yields the offset and the first part of each complete snapshot, newest first, as far back as the log goes."""
    start = log.tail().start_offset
    offset = last.newest_snapshot_offset
    while offset != NO_OFFSET and offset >= start:
        found = first_entry(log, offset)
        if found is None:
            return
        part = read_part(offset, found)
        yield offset, part
        offset = part.snapshot_offset


def first_entry(log: SyncReadableLog, offset: int) -> bytes | None:
    """Returns the entry at an offset, or None."""
    for chunk in log.read_chunks(offset, offset + 1):
        for entry in chunk:
            return entry.data
    return None

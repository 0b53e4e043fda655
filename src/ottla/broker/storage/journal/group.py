"""The contents of one journal write: entries of many logs, with their payloads neither changed nor joined."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from crc32c import crc32c

from ottla.broker.storage.journal.format import BLOCK_HEADER_BYTES, ENTRY_BYTES, BlockHeader, pack_block_header_into
from ottla.ports import ReadOnlyBuffer

Durable = Callable[[OSError | None], None]

_log = logging.getLogger(__name__)
_ENTRIES_AT_FIRST = 128
_ZEROS = memoryview(bytes(64 * 1024))


class JournaledLog(Protocol):
    """A log whose mutations go through the journal. It is compared by identity."""

    @property
    def journal_key(self) -> bytes:
        """`pack_key` of the log's key. It is part of each entry, so the log keeps it ready."""
        ...

    def on_journaled(self, end_offset: int) -> None:
        """All appends below the offset are on stable storage. Called once per log and group."""
        ...

    def on_journal_failed(self, error: OSError) -> None:
        """The journal has failed. Appends since the last `on_journaled` may or may not be on stable storage; no later
        one will be."""
        ...


class Group:
    """A group of entries. The journal fills it, writes it once, then clears and reuses it.

    The entry headers are packed in the buffer from which they are written, after a placeholder for the block header.
    """

    __slots__ = ("at", "at_max", "buffers", "durables", "ends", "headers", "mutated", "payload_bytes")

    def __init__(self) -> None:
        self.headers = bytearray(BLOCK_HEADER_BYTES + _ENTRIES_AT_FIRST * ENTRY_BYTES)
        self.at_max = len(self.headers) - ENTRY_BYTES
        self.clear()

    def clear(self) -> None:
        """Makes the group empty."""
        self.at = BLOCK_HEADER_BYTES
        self.payload_bytes = 0
        self.buffers: list[ReadOnlyBuffer] = [b""]
        """The buffers to write: the headers (set in first place at the end), payloads, padding."""
        self.ends: dict[JournaledLog, int] = {}
        """Each log that appended or was truncated, with its end after this group."""
        self.mutated: list[JournaledLog] = []
        """Logs with other mutations, which do not change their end."""
        self.durables: list[Durable] = []

    @property
    def entry_count(self) -> int:
        """The number of entries so far."""
        return (self.at - BLOCK_HEADER_BYTES) // ENTRY_BYTES

    @property
    def size_bytes(self) -> int:
        """Size without padding."""
        return self.at + self.payload_bytes

    def grow_headers(self) -> None:
        """Grows the headers into a new buffer: the writer of an earlier group may still hold a view of the current
        one."""
        larger = bytearray(2 * len(self.headers))
        larger[: self.at] = self.headers[: self.at]
        self.headers = larger
        self.at_max = len(larger) - ENTRY_BYTES

    def seal(self, header: BlockHeader) -> list[ReadOnlyBuffer]:
        """Completes the block and returns its buffers. `header` has everything but the entries' CRC."""
        headers = memoryview(self.headers)[: self.at]
        header = header._replace(entries_crc=crc32c(headers[BLOCK_HEADER_BYTES:]))
        pack_block_header_into(self.headers, header)
        self.buffers[0] = headers
        padding = header.block_bytes - self.size_bytes
        if padding:
            self.buffers.append(_ZEROS[:padding] if padding <= len(_ZEROS) else bytes(padding))
        return self.buffers

    def succeed(self) -> None:
        """Notifies the logs and callbacks that the group is durable."""
        for log, end_offset in self.ends.items():
            try:
                log.on_journaled(end_offset)
            except Exception:
                _log.exception("a log's callback for its durable end %d failed", end_offset)
        _call_all(self.durables, None)

    def fail(self, error: OSError, told: set[JournaledLog]) -> None:
        """Notifies the logs and callbacks that the group failed. `told` holds the logs that were already notified: a
        log may be in several groups, and is notified once."""
        for log in [*self.ends, *self.mutated]:
            if log in told:
                continue
            told.add(log)
            try:
                log.on_journal_failed(error)
            except Exception:
                _log.exception("a log's callback for the journal failure failed")
        _call_all(self.durables, error)


def _call_all(durables: list[Durable], error: OSError | None) -> None:
    """Runs all callbacks. One that raises must not prevent the others."""
    for durable in durables:
        try:
            durable(error)
        except Exception:
            _log.exception("the callback of a journaled mutation failed")

"""What one write of the journal carries: entries of many logs, their payloads untouched and not joined."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from crc32c import crc32c

from ottla.log.journal.format import BLOCK_HEADER_BYTES, ENTRY_BYTES, BlockHeader, pack_block_header_into
from ottla.ports import ReadOnlyBuffer

Durable = Callable[[OSError | None], None]

_log = logging.getLogger(__name__)
_ENTRIES_AT_FIRST = 128
_ZEROS = memoryview(bytes(64 * 1024))


class JournaledLog(Protocol):
    """A log whose mutations go through the journal. It is compared by identity."""

    @property
    def journal_key(self) -> bytes:
        """`pack_key` of the log's key: it is part of each entry, so the log keeps it ready."""
        ...

    def on_journaled(self, end_offset: int) -> None:
        """All appends below the offset are on stable storage. Once a log and group."""
        ...

    def on_journal_failed(self, error: OSError) -> None:
        """Appends since the last `on_journaled` may or may not be on stable storage, and no later one will be."""
        ...


class Group:
    """Filled by the journal, written once, then emptied and used again.

    The entry headers are packed where they will be written from, behind a place for the block header.
    """

    __slots__ = ("at", "at_max", "buffers", "durables", "ends", "headers", "mutated", "payload_bytes")

    def __init__(self) -> None:
        self.headers = bytearray(BLOCK_HEADER_BYTES + _ENTRIES_AT_FIRST * ENTRY_BYTES)
        self.at_max = len(self.headers) - ENTRY_BYTES
        self.clear()

    def clear(self) -> None:
        self.at = BLOCK_HEADER_BYTES
        self.payload_bytes = 0
        self.buffers: list[ReadOnlyBuffer] = [b""]
        """What is written: the headers, which come in first place at the end, payloads, padding."""
        self.ends: dict[JournaledLog, int] = {}
        """Each log that appended or was truncated, with its end after this group."""
        self.mutated: list[JournaledLog] = []
        """Logs with other mutations, which have no end here."""
        self.durables: list[Durable] = []

    @property
    def entry_count(self) -> int:
        return (self.at - BLOCK_HEADER_BYTES) // ENTRY_BYTES

    @property
    def size_bytes(self) -> int:
        """Without padding."""
        return self.at + self.payload_bytes

    def grow_headers(self) -> None:
        """Into a new buffer: the writer of an earlier group may still hold a view of the present one."""
        larger = bytearray(2 * len(self.headers))
        larger[: self.at] = self.headers[: self.at]
        self.headers = larger
        self.at_max = len(larger) - ENTRY_BYTES

    def seal(self, header: BlockHeader) -> list[ReadOnlyBuffer]:
        """All buffers of the block. The header comes with everything but the entries' checksum."""
        headers = memoryview(self.headers)[: self.at]
        header = header._replace(entries_crc=crc32c(headers[BLOCK_HEADER_BYTES:]))
        pack_block_header_into(self.headers, header)
        self.buffers[0] = headers
        padding = header.block_bytes - self.size_bytes
        if padding:
            self.buffers.append(_ZEROS[:padding] if padding <= len(_ZEROS) else bytes(padding))
        return self.buffers

    def succeed(self) -> None:
        for log, end_offset in self.ends.items():
            try:
                log.on_journaled(end_offset)
            except Exception:
                _log.exception("a log failed to take notice of its journaled end %d", end_offset)
        _call_all(self.durables, None)

    def fail(self, error: OSError, told: set[JournaledLog]) -> None:
        """`told` holds the logs that know it already: a log waits in several groups, and hears of it once."""
        for log in [*self.ends, *self.mutated]:
            if log in told:
                continue
            told.add(log)
            try:
                log.on_journal_failed(error)
            except Exception:
                _log.exception("a log failed to take notice of the journal's failure")
        _call_all(self.durables, error)


def _call_all(durables: list[Durable], error: OSError | None) -> None:
    """One callback that raises must not keep the others from hearing of it."""
    for durable in durables:
        try:
            durable(error)
        except Exception:
            _log.exception("the callback of a journaled mutation failed")

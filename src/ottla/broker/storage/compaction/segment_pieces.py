"""Reads a segment sequentially in pieces of whole batches. Blocking, on a disk thread."""

from __future__ import annotations

from ottla.broker.storage.segment import Segment
from ottla.broker.storage.startup.batch_walk import header_fault
from ottla.ports import DataFile, FileSystem
from ottla.protocol.records.batch import HEADER_BYTES, Batch, crc_matches, read_header

PIECE_BYTES = 512 * 1024


class UncleanableError(Exception):
    """A segment is damaged; the log is left as it is."""


class SegmentPieces:
    """Reads one segment through its own file handle, because the segment may be removed meanwhile. The caller reports
    with `take` how much of a piece it has used."""

    def __init__(self, files: FileSystem, segment: Segment) -> None:
        self._path = segment.path
        self._file: DataFile = files.open(segment.path)
        self._end = segment.appended_end
        self._end_offset = segment.end_offset
        self._position = 0
        self.next_offset = segment.base_offset
        self._piece = memoryview(b"")
        self._piece_at = 0

    def close(self) -> None:
        """Closes the file handle."""
        self._file.close()

    @property
    def has_more(self) -> bool:
        """True if there are more batches. Raises UncleanableError if the segment does not end at its recorded
        offset."""
        if self._position < self._end:
            return True
        if self.next_offset != self._end_offset:
            raise UncleanableError(f"{self._path} ends at offset {self.next_offset}, not {self._end_offset}")
        return False

    def piece(self) -> memoryview:
        """Returns a piece that starts with the next batch and holds all of it."""
        head = self._at_least(HEADER_BYTES)
        header = read_header(head)
        fault = header_fault(header, self.next_offset)
        if fault is None and self._position + header.size_bytes > self._end:
            fault = f"a batch of {header.size_bytes} bytes extends past the end of the file"
        if fault is not None:
            raise self._uncleanable(fault)
        return self._at_least(header.size_bytes)

    def batch(self) -> Batch:
        """Verifies and takes the next batch."""
        piece = self.piece()
        header = read_header(piece)
        data = piece[: header.size_bytes]
        if not crc_matches(data, header):
            raise self._uncleanable("the batch does not match its CRC")
        self.take(header.size_bytes, header.next_offset)
        return Batch(header, data)

    def take(self, size_bytes: int, next_offset: int) -> None:
        """Reports that `size_bytes` of the piece are processed and which offset follows."""
        self._position += size_bytes
        self.next_offset = next_offset

    def _at_least(self, size_bytes: int) -> memoryview:
        start = self._position - self._piece_at
        if start + size_bytes > len(self._piece):
            wanted = min(max(size_bytes, PIECE_BYTES), self._end - self._position)
            self._piece = memoryview(self._file.read_at(self._position, wanted))
            self._piece_at, start = self._position, 0
            if len(self._piece) < size_bytes:
                raise self._uncleanable("the file ends inside a batch")
        return self._piece[start:]

    def _uncleanable(self, reason: str) -> UncleanableError:
        return UncleanableError(f"{self._path} is damaged at position {self._position}: {reason}")

"""Walks over the batches of a segment file, from one header to the next.

Look-ups read only the headers; recovery and reads from disk check each batch against its CRC. Nothing in the file is
trusted: a length is used to find the next batch only after it has been found plausible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ottla.ports import DataFile
from ottla.protocol.records.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC, BatchHeader, crc_matches, read_header

CHUNK_BYTES = 256 * 1024
BATCH_LENGTH_MIN = HEADER_BYTES - LOG_OVERHEAD_BYTES
_MAGIC_AT = 16
OFFSET_SPAN_MAX = 2**31
"""The maximum number of offsets in a segment."""
ANY_OFFSET = -1
"""For a walk that does not know its first offset: the first batch may have any."""


class BadBatch(NamedTuple):
    """Where a walk stopped, and why."""

    position: int
    reason: str


class WalkedBatch(NamedTuple):
    """A batch that a walk has found."""

    position: int
    header: BatchHeader
    batch: memoryview
    """The whole batch if the walk verifies, otherwise at least its header."""


def header_fault(header: BatchHeader, expected_offset: int = ANY_OFFSET) -> str | None:
    """Returns why these 61 bytes cannot be the header of the next batch, or None.

    The CRC does not cover the base offset. But batches follow one another without a gap, so a damaged base offset shows
    as a gap.
    """
    if header.magic != MAGIC:
        return f"magic byte {header.magic}, expected {MAGIC}"
    if header.batch_length < BATCH_LENGTH_MIN:
        return f"batch length {header.batch_length} is too small"
    if header.base_offset < 0:
        return f"base offset {header.base_offset} is negative"
    if expected_offset not in (ANY_OFFSET, header.base_offset):
        return f"base offset {header.base_offset}, expected {expected_offset}"
    if header.last_offset_delta < 0:
        return f"last offset delta {header.last_offset_delta} is negative"
    return None


class BatchWalk:
    """Iterates over the batches in [position, end) of a file. If it stops early, `bad` says why."""

    def __init__(self, file: DataFile, position: int, end: int, *, verify: bool, next_offset: int = ANY_OFFSET) -> None:
        self._file = file
        self.position = position
        self._end = end
        self._verify = verify
        self.next_offset = next_offset
        self.bad: BadBatch | None = None
        self._chunk = memoryview(b"")
        self._chunk_at = position

    def __iter__(self) -> Iterator[WalkedBatch]:
        while self.position < self._end:
            head = self._bytes(HEADER_BYTES)
            if head is None:
                self._stop("the file ends inside a batch header")
                return
            header = read_header(head)
            fault = header_fault(header, self.next_offset)
            if fault is None and self.position + header.size_bytes > self._end:
                fault = f"a batch of {header.size_bytes} bytes extends past the end of the file"
            if fault is None and self._verify:
                head = self._bytes(header.size_bytes)
                if head is None:
                    fault = "the file ends inside a batch"
                elif not crc_matches(head, header):
                    fault = "the batch does not match its CRC"
            if fault is not None or head is None:
                self._stop(fault or "unreadable")
                return
            found = WalkedBatch(self.position, header, head)
            self.position += header.size_bytes
            self.next_offset = header.next_offset
            yield found

    def _stop(self, reason: str) -> None:
        self.bad = BadBatch(self.position, reason)

    def _bytes(self, length: int) -> memoryview | None:
        start = self.position - self._chunk_at
        if start < 0 or start + length > len(self._chunk):
            wanted = max(length, min(CHUNK_BYTES, self._end - self.position))
            self._chunk = memoryview(self._file.read_at(self.position, wanted))
            self._chunk_at, start = self.position, 0
        part = self._chunk[start : start + length]
        return part if len(part) == length else None


def find_next_valid(
    file: DataFile, position: int, end: int, offset_min: int, offset_end: int | None = None
) -> WalkedBatch | None:
    """Finds the first intact batch after damage, or None. It tries every byte, so that the batch is found wherever the
    damage ends; the CRC makes a false match practically impossible.

    The CRC does not cover the base offset, so the batch before or after has to agree with it. `offset_end` is the next
    offset at the end of the bytes, if it is known.
    """
    expected = _place_after(file, position)
    prefixes = {(offset_min >> 32).to_bytes(4, "big"), ((offset_min + OFFSET_SPAN_MAX) >> 32).to_bytes(4, "big")}
    at = position + 1
    while at + HEADER_BYTES <= end:
        chunk = file.read_at(at, min(CHUNK_BYTES, end - at))
        if len(chunk) < HEADER_BYTES:
            return None
        candidate = chunk.find(MAGIC, _MAGIC_AT)
        while candidate != -1 and candidate - _MAGIC_AT + HEADER_BYTES <= len(chunk):
            start = candidate - _MAGIC_AT
            # A recycled file has a gigabyte of older batches here: their first four bytes rule most of them out.
            header = read_header(chunk, start) if chunk[start : start + 4] in prefixes else None
            if header is not None and _is_plausible(header, end - at - start, offset_min, offset_end):
                found = WalkedBatch(at + start, header, memoryview(file.read_at(at + start, header.size_bytes)))
                is_intact = len(found.batch) == header.size_bytes and crc_matches(found.batch, header)
                follows_on = (found.position, header.base_offset) == expected
                if is_intact and (follows_on or _is_followed(file, found, end, offset_end)):
                    return found
            candidate = chunk.find(MAGIC, candidate + 1)
        at += len(chunk) - HEADER_BYTES + 1
    return None


def _place_after(file: DataFile, position: int) -> tuple[int, int] | None:
    """Returns the (position, offset) after a damaged batch, as its own header says."""
    head = file.read_at(position, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return None
    header = read_header(head)
    return (position + header.size_bytes, header.next_offset) if header_fault(header) is None else None


def _is_plausible(header: BatchHeader, room_bytes: int, offset_min: int, offset_end: int | None) -> bool:
    return (
        offset_min <= header.base_offset <= offset_min + OFFSET_SPAN_MAX
        and (offset_end is None or header.next_offset <= offset_end)
        and header.size_bytes <= room_bytes
        and 0 <= header.record_count <= header.last_offset_delta + 1  # a compaction leaves fewer
        and header_fault(header) is None
    )


def _is_followed(file: DataFile, found: WalkedBatch, end: int, offset_end: int | None) -> bool:
    """Reports whether a batch is followed by one that continues at its end, or by the end itself."""
    at = found.position + found.header.size_bytes
    if at == end:
        return offset_end in (None, found.header.next_offset)
    head = file.read_at(at, HEADER_BYTES)
    return len(head) == HEADER_BYTES and header_fault(read_header(head), found.header.next_offset) is None


def intact_batches(
    file: DataFile,
    position: int,
    end: int,
    next_offset: int = ANY_OFFSET,
    *,
    on_bad: Callable[[BadBatch, int], object] | None = None,
) -> Iterator[WalkedBatch]:
    """Yields every intact batch and skips any damage in between. `on_bad` is called for each damage, with the offset at
    which it begins."""
    while True:
        walk = BatchWalk(file, position, end, verify=True, next_offset=next_offset)
        yield from walk
        if walk.bad is None:
            return
        if on_bad is not None:
            on_bad(walk.bad, walk.next_offset)
        found = find_next_valid(file, walk.bad.position, end, max(walk.next_offset, 0))
        if found is None:
            return
        position, next_offset = found.position, found.header.base_offset

"""Reads segments, finds the last record of each key, and writes what is left. Blocking, on a disk thread.

Both halves are iterators that stop after a slice of work and yield the bytes that it took, so that whoever drives them
can pause and can give up at any of these moments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ottla.log.compaction.swap import compacted_path
from ottla.log.segment import Segment
from ottla.log.walk import Walk, Walked
from ottla.ports import DataFile, FileSystem
from ottla.records.batch import BatchHeader, read_header
from ottla.records.compacted import (
    OFFSETS_MAX,
    emptied,
    has_delete_horizon,
    is_placeholder,
    placeholder,
    with_delete_horizon,
    with_fewer_records,
)
from ottla.records.envelope import open_batch
from ottla.records.key_map import AnyKeyMap
from ottla.records.validation import INSPECTED_BYTES_MAX

SLICE_BYTES = 256 * 1024
WRITE_BYTES = 256 * 1024


class UncleanableError(Exception):
    """A segment does not read back as it was written: the log is left as it is."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides, beside the keys."""

    upto: int
    """Batches that reach above this are left as they are: not all of their keys are known."""
    now_ms: int
    delete_retention_ms: int
    last_batches: frozenset[int]
    """The base offsets of the last batch of each producer."""


def walk_segment(files: FileSystem, segment: Segment) -> Iterator[Walked]:
    """Every batch, checked. Opens a file of its own: the segment may be removed meanwhile."""
    file = files.open(segment.path)
    try:
        walk = Walk(file, 0, segment.appended_end, verify=True, next_offset=segment.base_offset)
        yield from walk
        if walk.bad is not None:
            raise UncleanableError(f"{segment.path} is damaged at position {walk.bad.position}: {walk.bad.reason}")
        if walk.next_offset != segment.end_offset:
            raise UncleanableError(f"{segment.path} ends at offset {walk.next_offset}, not {segment.end_offset}")
    finally:
        file.close()


def fill_map(files: FileSystem, segments: list[Segment], dirty_from: int, keys: AnyKeyMap) -> Iterator[tuple[int, int]]:
    """Takes the keys of all records from an offset on, as long as there is room. Yields how many bytes were read since
    the last time, and the offset up to which all keys are known."""
    upto, taken = dirty_from, 0
    for segment in segments:
        for _, header, batch in walk_segment(files, segment):
            taken += len(batch)
            if header.next_offset > dirty_from:
                if not keys.has_room_for(header.record_count):
                    yield taken, upto
                    return
                if has_keys(header):
                    keys.note(*open_batch(batch, INSPECTED_BYTES_MAX, check_crc=False))
                upto = header.next_offset
            if taken >= SLICE_BYTES:
                yield taken, upto
                taken = 0
    yield taken, upto


def has_keys(header: BatchHeader) -> bool:
    """Whether the keys of a batch make older records of the same keys superfluous. Those of a transaction do only if it
    is committed, which a log does not know yet."""
    return header.record_count > 0 and not header.is_control and not header.is_transactional


class Rewriting:
    """Of segments that follow one another, into one new file."""

    def __init__(self, files: FileSystem, directory: str, group: list[Segment], fresh: Segment) -> None:
        self._files = files
        self._group = group
        self.fresh = fresh
        """Has the index and the sizes of what was written; its file has not got its name yet."""
        self.path = compacted_path(directory, group[0].base_offset)
        self._file: DataFile | None = None
        self._gathered: list[bytes | bytearray | memoryview] = []
        self._gathered_bytes = 0
        self._written_bytes = 0
        self._hole: tuple[int, int, int] | None = None
        """(first offset, next offset, leader epoch) of batches that are gone and have no placeholder yet."""
        self.removed_records = 0
        self.changed = len(group) > 1

    @property
    def file(self) -> DataFile:
        assert self._file is not None
        return self._file

    def run(self, keys: AnyKeyMap, rules: Rules) -> Iterator[int]:
        """Writes all of it, unsynced. Yields the bytes that were read and written since the last time."""
        self._file = self._files.open(self.path, create=True)
        self._file.truncate(0)
        taken = 0
        for segment in self._group:
            for _, header, batch in walk_segment(self._files, segment):
                taken += len(batch)
                self._take(header, batch, keys, rules)
                if taken >= SLICE_BYTES:
                    yield taken + self._newly_written()
                    taken = 0
        self._fill_hole()
        self._write()
        yield taken + self._newly_written()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _newly_written(self) -> int:
        written, self._written_bytes = self._written_bytes, 0
        return written

    def _take(self, header: BatchHeader, batch: memoryview, keys: AnyKeyMap, rules: Rules) -> None:
        if header.is_control or header.next_offset > rules.upto:
            self._put(header, batch)
        elif header.record_count == 0:
            self._drop_or_empty(header, rules)
        else:
            self._filter(header, batch, keys, rules)

    def _filter(self, header: BatchHeader, batch: memoryview, keys: AnyKeyMap, rules: Rules) -> None:
        _, body = open_batch(batch, INSPECTED_BYTES_MAX, check_crc=False)
        # Not of transactions: whether they were committed is not known here.
        drops = has_delete_horizon(header) and rules.now_ms >= header.base_timestamp and not header.is_transactional
        look = keys.look(header, body, drops_tombstones=drops)
        self.removed_records += header.record_count - look.records
        is_new_tombstone = look.tombstones > 0 and not has_delete_horizon(header) and not header.is_transactional
        if look.records == 0:
            self._drop_or_empty(header, rules)
        elif look.records == header.record_count and not is_new_tombstone:
            self._put(header, batch)
        else:
            target = header
            if is_new_tombstone:
                target = with_delete_horizon(header, rules.now_ms + rules.delete_retention_ms)
            kept = keys.rewrite(header, body, drops_tombstones=drops, base_timestamp=target.base_timestamp)
            self._put(header, with_fewer_records(target, kept, look.records, look.max_timestamp), is_same=False)

    def _drop_or_empty(self, header: BatchHeader, rules: Rules) -> None:
        if header.producer_id >= 0 and header.base_offset in rules.last_batches:
            self._put(header, emptied(header), is_same=header.record_count == 0)
            return
        first, end, epoch = self._hole or (header.base_offset, header.base_offset, header.leader_epoch)
        if epoch != header.leader_epoch or header.next_offset - first > OFFSETS_MAX:
            self._fill_hole()
            first = end = header.base_offset
            epoch = header.leader_epoch
        self.changed = self.changed or not is_placeholder(header) or end > first
        self._hole = first, header.next_offset, epoch

    def _fill_hole(self) -> None:
        if self._hole is not None:
            first, end, epoch = self._hole
            self._hole = None
            self._append(placeholder(first, end, epoch))

    def _put(self, header: BatchHeader, batch: bytearray | memoryview, *, is_same: bool = True) -> None:
        self.changed = self.changed or not is_same
        self._fill_hole()
        self._append(batch)

    def _append(self, batch: bytearray | memoryview) -> None:
        self.fresh.append(read_header(batch), len(batch))
        self._gathered.append(batch)
        self._gathered_bytes += len(batch)
        if self._gathered_bytes >= WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        if self._gathered:
            self.file.write_at(self.fresh.appended_end - self._gathered_bytes, self._gathered)
            self._written_bytes += self._gathered_bytes
            self._gathered, self._gathered_bytes = [], 0

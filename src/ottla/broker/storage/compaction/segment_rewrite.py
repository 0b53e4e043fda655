"""Reads segments, finds the last record of each key, and writes the remaining records. Blocking, on a disk thread.

Both steps are iterators that stop after a piece of a segment and yield the number of bytes it took, so that the caller
can pause or give up at any of these points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ottla.broker.storage.compaction.ended_transactions import EndedTransactions
from ottla.broker.storage.compaction.segment_pieces import PIECE_BYTES, SegmentPieces
from ottla.broker.storage.compaction.swap import compacted_path
from ottla.broker.storage.segment import Segment
from ottla.ports import DataFile, FileSystem
from ottla.protocol.records.batch import BatchHeader, read_header
from ottla.protocol.records.compacted_batches import (
    OFFSETS_MAX,
    emptied,
    has_delete_horizon,
    is_placeholder,
    placeholder,
    with_delete_horizon,
    with_fewer_records,
)
from ottla.protocol.records.envelope import open_batch
from ottla.protocol.records.key_map import AnyKeyMap, Hole, Sifted, Sifting, with_base_timestamp
from ottla.protocol.records.validation import INSPECTED_BYTES_MAX

SLICE_BYTES = PIECE_BYTES // 2
"""Less than the size of a piece, all of which is taken at once if nothing in it needs the slow path."""
WRITE_BYTES = 512 * 1024


def fill_map(
    files: FileSystem, segments: Sequence[Segment], dirty_from: int, keys: AnyKeyMap, decided: EndedTransactions
) -> Iterator[tuple[int, int]]:
    """Collects the keys of all records from an offset on, as long as there is room. Yields the bytes read since the
    last yield, and the offset up to which all keys are known."""
    upto = dirty_from
    for segment in segments:
        pieces = SegmentPieces(files, segment)
        try:
            taken = 0
            while pieces.has_more:
                if taken >= SLICE_BYTES:
                    yield taken, upto
                    taken = 0
                size, next_offset = _note_some(pieces, dirty_from, keys, decided)
                if not size:
                    yield taken, upto
                    return
                taken += size
                upto = max(upto, next_offset)
            yield taken, upto
        finally:
            pieces.close()


def _note_some(pieces: SegmentPieces, dirty_from: int, keys: AnyKeyMap, decided: EndedTransactions) -> tuple[int, int]:
    """Returns the bytes taken and the offset after them; no bytes if there is no room for the next batch."""
    piece = pieces.piece()
    if pieces.next_offset >= dirty_from:
        taken = keys.note_batches(piece, pieces.next_offset)
        if taken[0]:
            pieces.take(*taken)
            return taken
    header = read_header(piece)
    if header.next_offset > dirty_from and not keys.has_room_for(header.record_count):
        return 0, pieces.next_offset
    header, batch = pieces.batch()
    if header.next_offset > dirty_from and decided.has_keys(header):
        keys.note(*open_batch(batch, INSPECTED_BYTES_MAX, check_crc=False))
    return len(batch), header.next_offset


class SegmentRewrite:
    """Rewrites contiguous segments into one new file."""

    def __init__(
        self, files: FileSystem, directory: str, group: list[Segment], fresh: Segment, decided: EndedTransactions
    ) -> None:
        self._files = files
        self._decided = decided
        self._group = group
        self.fresh = fresh
        """Has the index and sizes of what was written; its file does not have its final name yet."""
        self.path = compacted_path(directory, group[0].base_offset)
        self._file: DataFile | None = None
        self._gathered: list[bytes | bytearray | memoryview] = []
        self._gathered_bytes = 0
        self._moved_bytes = 0
        self._hole: Hole | None = None
        self.removed_records = 0
        self.changed = len(group) > 1

    @property
    def file(self) -> DataFile:
        """The new file, which must have been created."""
        assert self._file is not None
        return self._file

    def run(self, keys: AnyKeyMap, sifting: Sifting) -> Iterator[int]:
        """Writes the new file, unsynced. Yields the bytes read and written since the last yield."""
        self._file = self._files.open(self.path, create=True)
        self._file.truncate(0)
        for segment in self._group:
            pieces = SegmentPieces(self._files, segment)
            try:
                while pieces.has_more:
                    if self._moved_bytes >= SLICE_BYTES:
                        yield self._newly_moved()
                    self._take_some(pieces, keys, sifting)
            finally:
                pieces.close()
        self._fill_hole()
        self._write()
        yield self._newly_moved()

    def close(self) -> None:
        """Closes the new file, if it was created. Does not sync or remove it."""
        if self._file is not None:
            self._file.close()

    def _newly_moved(self) -> int:
        moved, self._moved_bytes = self._moved_bytes, 0
        return moved

    def _take_some(self, pieces: SegmentPieces, keys: AnyKeyMap, sifting: Sifting) -> None:
        sifted = keys.sift_batches(pieces.piece(), pieces.next_offset, sifting, self._hole)
        if sifted is not None:
            pieces.take(sifted.taken_bytes, sifted.next_offset)
            self._moved_bytes += sifted.taken_bytes
            self._take_sifted(sifted)
            return
        header, batch = pieces.batch()
        self._moved_bytes += len(batch)
        if header.is_control and header.record_count > 0:
            self._take_marker(header, batch, sifting)
        elif header.next_offset > sifting.upto:
            self._decided.note_left(header)
            self._put(batch)
        elif header.record_count == 0 or self._decided.is_aborted(header):
            self.removed_records += header.record_count
            self._drop_or_empty(header, sifting)
        else:
            self._sift(header, batch, keys, sifting)

    # -- many batches at once ----------------------------------------------------------------------------------

    def _take_sifted(self, sifted: Sifted) -> None:
        self._hole = sifted.hole
        self.removed_records += sifted.removed_records
        self.changed = self.changed or sifted.changed
        if sifted.base_offsets:
            self.fresh.append_many(sifted.base_offsets, sifted.positions, sifted.max_timestamps, len(sifted.data))
            self.fresh.end_offset = sifted.next_offset if sifted.hole is None else sifted.hole.first_offset
            self._gather(sifted.data)

    # -- one batch ---------------------------------------------------------------------------------------------

    def _sift(self, header: BatchHeader, batch: memoryview, keys: AnyKeyMap, sifting: Sifting) -> None:
        _, body = open_batch(batch, INSPECTED_BYTES_MAX, check_crc=False)
        drops = has_delete_horizon(header) and sifting.now_ms >= header.base_timestamp
        look = keys.look(header, body, drops)
        self.removed_records += header.record_count - look.records
        is_new_tombstone = look.tombstones > 0 and not has_delete_horizon(header)
        if look.records > 0:
            self._decided.note_left(header)
        if look.records == 0:
            self._drop_or_empty(header, sifting)
        elif look.records == header.record_count and not is_new_tombstone:
            self._put(batch)
        else:
            target = with_delete_horizon(header, sifting.horizon_ms) if is_new_tombstone else header
            kept = keys.rewrite(header, body, drops, target.base_timestamp)
            self._put(with_fewer_records(target, kept, look.records, look.max_timestamp))
            self.changed = True

    def _take_marker(self, header: BatchHeader, batch: memoryview, sifting: Sifting) -> None:
        ends_nothing = self._decided.ends_nothing(header)
        if not ends_nothing or header.next_offset > sifting.upto or header.base_offset in sifting.last_batches:
            self._put(batch)
        elif self._decided.may_go(header, sifting.now_ms):
            self._drop_or_empty(header, sifting)
        elif has_delete_horizon(header):
            self._put(batch)
        else:
            _, body = open_batch(batch, INSPECTED_BYTES_MAX, check_crc=False)
            target = with_delete_horizon(header, sifting.horizon_ms)
            records = with_base_timestamp(header, body, target.base_timestamp)
            self._put(with_fewer_records(target, records, header.record_count, header.max_timestamp))
            self.changed = True

    def _drop_or_empty(self, header: BatchHeader, sifting: Sifting) -> None:
        if header.producer_id >= 0 and header.base_offset in sifting.last_batches:
            self._put(emptied(header))
            self.changed = self.changed or header.record_count > 0
            return
        hole = self._hole
        if hole is not None and (
            hole.leader_epoch != header.leader_epoch or header.next_offset - hole.first_offset > OFFSETS_MAX
        ):
            self._fill_hole()
            hole = None
        self.changed = self.changed or not is_placeholder(header) or hole is not None
        first_offset = header.base_offset if hole is None else hole.first_offset
        self._hole = Hole(first_offset, header.next_offset, header.leader_epoch)

    def _fill_hole(self) -> None:
        if self._hole is not None:
            filling = placeholder(*self._hole)
            self._hole = None
            self._append(filling)

    def _put(self, batch: bytearray | memoryview) -> None:
        self._fill_hole()
        self._append(batch)

    # -- the file ----------------------------------------------------------------------------------------------

    def _append(self, batch: bytearray | memoryview) -> None:
        self.fresh.append(read_header(batch), len(batch))
        self._gather(batch)

    def _gather(self, data: bytes | bytearray | memoryview) -> None:
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        if self._gathered:
            self.file.write_at(self.fresh.appended_end - self._gathered_bytes, self._gathered)
            self._moved_bytes += self._gathered_bytes
            self._gathered, self._gathered_bytes = [], 0

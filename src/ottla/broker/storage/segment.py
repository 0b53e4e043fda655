"""One segment of a log: a file of record batches, its index, and its three ends.

The ends are positions in the file: appended (in memory), written (the write call returned) and synced (on stable
storage). They never cross: synced <= written <= appended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise

from ottla.broker.storage.index import ENTRY_BYTES, SparseIndex
from ottla.ports import DataFile, FileSystem
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.produce_run import BatchRun

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".ottla-index"
"""Not Kafka's suffix, because the format is Ottla's own."""
REWRITE_SUFFIX = ".rewrite"
"""Suffix of a segment that is being rewritten. A file that a crash left behind is discarded."""
ALLOCATION_BYTES_MIN = 64 * 1024
ALLOCATION_BYTES_MAX = 64 * 1024 * 1024
OFFSET_SPAN_MAX = 2**31 - 1


def segment_name(base_offset: int) -> str:
    """Returns the file name: the base offset with 20 digits, as in Kafka."""
    return f"{base_offset:020d}{LOG_SUFFIX}"


class Segment:
    """One segment of a log."""

    __slots__ = (
        "_allocation_bytes",
        "_file",
        "_files",
        "allocated_end",
        "allocating",
        "appended_end",
        "base_offset",
        "created_ms",
        "end_offset",
        "entry_durable",
        "index",
        "max_timestamp",
        "path",
        "readers",
        "removed",
        "replaced",
        "sealing",
        "synced_end",
        "untimed_ms",
        "written_end",
    )

    def __init__(self, files: FileSystem, directory: str, base_offset: int, interval_bytes: int, now_ms: int) -> None:
        self._files = files
        self._file: DataFile | None = None
        self.path = f"{directory}/{segment_name(base_offset)}"
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.appended_end = 0
        self.written_end = 0
        self.synced_end = 0
        self.allocated_end = 0
        self.allocating = False
        """True while space is being allocated in the background."""
        self._allocation_bytes = ALLOCATION_BYTES_MIN
        self.created_ms = now_ms
        self.max_timestamp = -1
        self.untimed_ms = -1
        """The arrival time of the last batch without a timestamp of its own."""
        self.index = SparseIndex(interval_bytes)
        self.entry_durable = False
        """True if the directory has been synced since the file was created."""
        self.removed = False
        self.replaced = False
        """True if another file has taken its name. The old file remains only for reads that have it open."""
        self.sealing = False
        """True while its end is being truncated on a disk thread."""
        self.readers = 0
        """Number of reads that use the file outside the loop's thread. While there are any, the file must not be
        recycled."""

    @property
    def index_path(self) -> str:
        """The path of the index file, next to the segment."""
        return self.path.removesuffix(LOG_SUFFIX) + INDEX_SUFFIX

    @property
    def file(self) -> DataFile:
        """The file, opened and created on first use: a thousand empty partitions cost no descriptors."""
        if self._file is None:
            directory = self.path.rpartition("/")[0]
            if not self.removed and not self._files.exists(directory):
                self._files.make_dirs(directory)
            self._file = self._files.open(self.path, create=not self.removed)
        return self._file

    def reader(self) -> DataFile:
        """Returns the file for reading and never creates it. Raises FileNotFoundError if the segment was removed."""
        if self._file is None:
            if self.replaced:
                raise FileNotFoundError(f"{self.path} now belongs to another segment")
            self._file = self._files.open(self.path)
        return self._file

    @property
    def has_spare_space(self) -> bool:
        """True if the file is open and has allocated space after the last batch."""
        return self._file is not None and self.allocated_end > self.appended_end

    def adopt_space(self, size: int) -> None:
        """Adopts the space of a recycled file, whose contents beyond the segment's end are meaningless."""
        self.allocated_end = size

    def append(self, header: BatchHeader, size: int) -> int:
        """Notes a batch at the end and returns its position."""
        position = self.appended_end
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
        self.index.note(header.base_offset - self.base_offset, position, self.max_timestamp)
        self.appended_end = position + size
        self.end_offset = header.next_offset
        return position

    def append_run(self, run: BatchRun) -> int:
        """Notes contiguous batches at the end and returns the position of the first."""
        first_position = self.appended_end
        positions = list(accumulate(map(len, run.batches), initial=first_position))
        self.appended_end = positions.pop()
        self.max_timestamp = self.index.note_run(
            run.bases, self.base_offset, positions, 0, run.max_timestamps, self.max_timestamp
        )
        self.end_offset = run.ends[-1]
        return first_position

    def append_many(
        self, base_offsets: list[int], positions: list[int], max_timestamps: list[int], size_bytes: int
    ) -> None:
        """Notes contiguous batches at the end. Their positions are relative to the current end. The caller sets
        `end_offset`."""
        begin = self.appended_end
        self.max_timestamp = self.index.note_run(
            base_offsets, self.base_offset, positions, begin, max_timestamps, self.max_timestamp
        )
        self.appended_end = begin + size_bytes

    @property
    def youngest_ms(self) -> int:
        """The segment's newest timestamp, for retention. For records without timestamps, it is the time at which they
        arrived or at which the log was opened."""
        known = max(self.max_timestamp, self.untimed_ms)
        return known if known >= 0 else self.created_ms

    @property
    def oldest_ms(self) -> int:
        """The timestamp of the first batch, or the creation time if that is unknown."""
        first_ms = self.index.first_timestamp()
        return first_ms if first_ms >= 0 else self.created_ms

    def next_allocation(self, segment_bytes_max: int) -> tuple[int, int]:
        """Returns the (start, length) of the space to allocate next. The length doubles each time, so that a busy log
        rarely allocates and an idle one holds little space."""
        length = min(self._allocation_bytes, max(segment_bytes_max - self.allocated_end, ALLOCATION_BYTES_MIN))
        self._allocation_bytes = min(self._allocation_bytes * 2, ALLOCATION_BYTES_MAX)
        return self.allocated_end, length

    def persist_index(self) -> None:
        """Appends new entries to the index file. Blocking. It is not synced, because the index can always be
        rebuilt."""
        count, data = len(self.index), self.index.unpersisted()
        if data:
            index_file = self._files.open(self.index_path, create=True)
            try:
                index_file.write_at(self.index.persisted * ENTRY_BYTES, [data])
            finally:
                index_file.close()
            self.index.persisted = count

    def seal(self) -> None:
        """Ends the appends and frees the space reserved beyond the end. Blocking."""
        if self._file is not None:
            self._file.truncate(self.appended_end)
        self.allocated_end = self.appended_end

    def end_read(self) -> None:
        """Ends a read; the last read of a replaced segment closes its file."""
        self.readers -= 1
        if self.replaced and self.readers == 0:
            self.close()

    def replace_file(self, file: DataFile, size: int, allocated_end: int) -> None:
        """Switches to a rewritten file, which is complete, synced and has the segment's name. `entry_durable` stays
        unchanged."""
        self._file = file
        self.written_end = self.synced_end = size
        self.allocated_end = allocated_end

    def be_replaced(self) -> None:
        """Marks the segment as replaced. Readers continue with the old file, and the last of them closes it."""
        self.removed = self.replaced = True
        if self.readers == 0:
            self.close()

    def release(self) -> None:
        """Releases the file of a removed segment: now, or when the last reader has finished."""
        if self.readers == 0:
            self.close()
        self._file = None

    def close(self) -> None:
        """Closes the file, if it is open. It is opened again when needed."""
        if self._file is not None:
            self._file.close()
            self._file = None


def unsynced_since_ms(segments: list[Segment], now_ms: int) -> int:
    """Returns when the oldest full but unsynced segment was completed. All segments before it are synced."""
    since_ms = now_ms
    for following, segment in pairwise(reversed(segments)):
        if segment.synced_end >= segment.written_end:
            break
        since_ms = following.created_ms
    return since_ms


def seal_all(segments: list[Segment]) -> None:
    """Trims the files to their contents at a clean shutdown. Blocking."""
    for segment in segments:
        segment.seal()


@contextmanager
def held(segments: list[Segment]) -> Iterator[list[Segment]]:
    """Yields the current segments and keeps them from being recycled meanwhile."""
    kept = list(segments)
    for segment in kept:
        segment.readers += 1
    try:
        yield kept
    finally:
        for segment in kept:
            segment.end_read()

"""Reads the records of one partition from an archive in offset order, with pyarrow and without Spark.

This is for restoring from a log that retention has truncated. Only files that the manifest names are read, and on a
local disk each file is verified against the manifest's checksum before it is used. (An object store would have to send
the whole file for that, and has checksums of its own.)
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from ottla.archive.failures import DamagedError, PipelineError
from ottla.archive.manifest import DIRECTORY, ArchivedFile, ManifestLog
from ottla.archive.ranges import OffsetRange, gaps
from ottla.archive.store import Store
from ottla.client.consumer.types import TopicPartition

__all__ = ["ArchivedRecord", "ArchivedRecords", "PipelineError"]

CHUNK_BYTES = 4 << 20
_COLUMNS = ["offset", "value", "timestamp"]


class ArchivedRecord(NamedTuple):
    """A record of an archive."""

    offset: int
    value: bytes
    timestamp_ms: int


class ArchivedRecords:
    """The archived records of one partition."""

    def __init__(self, place: str, topic: str, partition: int = 0) -> None:
        """Opens the archive. Raises PipelineError if there is no archive, or nothing of the partition in it."""
        self.place, self.topic = place, topic
        try:
            self._store = Store(place)
            if not self._store.list_files(DIRECTORY):
                raise PipelineError(f"there is no archive in {place}; 'ottla pipeline archive run' creates one")
        except (OSError, pa.ArrowInvalid) as failure:
            raise PipelineError(f"the archive {place} cannot be read: {failure}") from failure
        manifest = ManifestLog(self._store).load()
        at = TopicPartition(topic, partition)
        self._files = manifest.files_of(at)
        self.ranges = manifest.archived(at)
        """The ranges that were read from the log, including offsets without a record."""
        self.gaps = gaps(self.ranges)
        """The gaps between the ranges."""
        self._opened: tuple[str, Any] | None = None
        self._group_read: tuple[tuple[str, int], Any] | None = None
        if not self.ranges:
            raise PipelineError(
                f"the archive {place} has no records of {topic}; it has {manifest.topics() or 'nothing'}"
            )

    def read(self, first: int, until: int) -> Iterator[list[ArchivedRecord]]:
        """Yields records in chunks of a few megabytes. Raises DamagedError."""
        wanted = OffsetRange(first, max(first, until))
        held: list[ArchivedRecord] = []
        held_bytes = 0
        for together in _overlapping([each for each in self._files if wanted.intersection(each.span) is not None]):
            # The offsets of two days may be interleaved around midnight.
            for record in heapq.merge(*(self._rows(file, wanted) for file in together), key=attrgetter("offset")):
                held.append(record)
                held_bytes += len(record.value)
                if held_bytes >= CHUNK_BYTES:
                    yield held
                    held, held_bytes = [], 0
        if held:
            yield held

    def _rows(self, file: ArchivedFile, wanted: OffsetRange) -> Iterator[ArchivedRecord]:
        parquet = self._open(file)
        for group in range(parquet.num_row_groups):
            if wanted.intersection(_span(parquet.metadata.row_group(group))) is not None:
                table = self._group(file, parquet, group)
                offsets = table["offset"].to_pylist()
                first, end = bisect_left(offsets, wanted.start), bisect_left(offsets, wanted.end)
                values, times = table["value"], table["timestamp"]
                for row in range(first, end):
                    yield ArchivedRecord(offsets[row], values[row].as_py() or b"", times[row].value // 1000)

    def _group(self, file: ArchivedFile, parquet: Any, group: int) -> Any:
        """Reads a row group and caches the last one, because a search in the log reads records of the same group many
        times."""
        key = file.path, group
        if self._group_read is None or self._group_read[0] != key:
            try:
                self._group_read = key, parquet.read_row_group(group, columns=_COLUMNS)
            except (OSError, pa.ArrowInvalid) as failure:
                raise self._unreadable(file, failure) from failure
        return self._group_read[1]

    def _open(self, file: ArchivedFile) -> Any:
        if self._opened is not None and self._opened[0] == file.path:
            return self._opened[1]
        try:
            if self._store.is_local:
                content = pa.memory_map(self._store.full_path(file.path)).read_buffer()
                if len(content) != file.size_bytes or crc32c(content) != file.crc32c:
                    raise DamagedError(
                        f"{file.path} of the archive {self.place} has changed since it was written; run 'ottla "
                        f"pipeline archive verify {self.place} --deep' for details"
                    )
                parquet = pq.ParquetFile(pa.BufferReader(content))
            else:
                parquet = pq.ParquetFile(self._store.files.open_input_file(self._store.full_path(file.path)))
        except (OSError, pa.ArrowInvalid) as failure:
            raise self._unreadable(file, failure) from failure
        self._opened = file.path, parquet
        return parquet

    def _unreadable(self, file: ArchivedFile, failure: Exception) -> DamagedError:
        return DamagedError(f"{file.path} of the archive {self.place} cannot be read: {failure}")


def _span(group: Any) -> OffsetRange:
    """Returns the offsets that a row group may contain, according to its statistics."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == "offset" and column.statistics is not None and column.statistics.has_min_max:
            return OffsetRange(column.statistics.min, column.statistics.max + 1)
    return OffsetRange(0, 1 << 63)


def _overlapping(files: list[ArchivedFile]) -> Iterator[list[ArchivedFile]]:
    """Groups files, in offset order, whose offsets overlap."""
    together: list[ArchivedFile] = []
    end = 0
    for file in files:
        if together and file.first_offset >= end:
            yield together
            together = []
        together.append(file)
        end = max(end, file.last_offset + 1)
    if together:
        yield together

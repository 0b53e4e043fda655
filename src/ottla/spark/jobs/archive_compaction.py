"""Merges small files of an archive: writes the new files, then replaces the old ones in one commit.

A crash before the commit leaves new files that no commit names; after the commit, the old files remain. `sweep` removes
both. Old files are kept for an hour, for readers that have loaded the manifest before.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from ottla.archive.failures import DamagedError
from ottla.archive.manifest import ArchivedFile, Change, ManifestLog
from ottla.archive.ranges import OffsetRange
from ottla.archive.store import Store
from ottla.spark.jobs.archive import now_ms, sweep
from ottla.spark.jobs.archive_files import FileWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_BYTES = 128 * 1024 * 1024
FILES_MIN = 4
FILES_A_RUN_LEAVES = 16
"""The number of small files per partition and day up to which a run of the archive does not merge."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of a compaction."""

    merged: int
    """The number of files that were merged."""
    into: int
    """The number of files that replaced them."""
    rows: int


def groups_to_merge(
    files: Iterable[ArchivedFile], *, file_bytes: int = FILE_BYTES, files_min: int = FILES_MIN
) -> list[list[ArchivedFile]]:
    """Returns groups of small adjacent files of one partition and day, each at most `file_bytes` in total. Pure."""

    def day(file: ArchivedFile) -> tuple[str, int, str]:
        return file.topic, file.partition, file.date

    ordered = sorted(files, key=lambda each: (*day(each), each.first_offset))
    found: list[list[ArchivedFile]] = []
    for _, neighbours in groupby(ordered, key=day):
        group: list[ArchivedFile] = []
        for file in neighbours:
            fits = sum(each.size_bytes for each in group) + file.size_bytes <= file_bytes
            if file.size_bytes * 2 > file_bytes or not fits:
                found.append(group)
                group = []
            if file.size_bytes * 2 <= file_bytes:
                group.append(file)
        found.append(group)
    return [group for group in found if len(group) >= max(2, files_min)]


def compact(
    spark: SparkSession, store: Store, *, file_bytes: int = FILE_BYTES, files_min: int = FILES_MIN
) -> Compaction:
    """Merges all groups on the workers, in one commit."""
    with store.writer_lock():
        manifest_log = ManifestLog(store)
        manifest = manifest_log.load()
        sweep(store, manifest, now_ms())
        groups = groups_to_merge(manifest.files.values(), file_bytes=file_bytes, files_min=files_min)
        if not groups:
            return Compaction(0, 0, 0)
        root, number = store.root, manifest.commit_count
        tasks = spark.sparkContext.parallelize(groups, len(groups))
        merged = tasks.map(lambda group: merge(root, group, number)).collect()
        removed = [file.path for group in groups for file in group]
        manifest_log.commit(manifest, Change("compact", now_ms(), added=merged, removed=removed))
        return Compaction(len(removed), len(merged), sum(each.rows for each in merged))


def merge(root: str, group: list[ArchivedFile], commit_number: int) -> ArchivedFile:
    """Merges a group, in a task. Rejects a damaged file, because merging would hide the damage."""
    store = Store(root)
    first, last = group[0], group[-1]
    whole = OffsetRange(first.first_offset, last.last_offset + 1)
    name = f"{whole.start:020d}-{whole.end:020d}.c{commit_number}.{uuid.uuid4().hex[:12]}.parquet"
    writer = FileWriter(store, first.at, first.date, name, whole)
    for file in group:
        content = store.read(file.path)
        if crc32c(content) != file.crc32c:
            raise DamagedError(f"{file.path} has changed since it was written; run 'archive verify' for details")
        for batch in pq.ParquetFile(pa.BufferReader(content)).iter_batches():
            writer.append(pa.Table.from_batches([batch]))
    written = writer.close()
    if written.rows != sum(each.rows for each in group):
        raise DamagedError(f"{written.path} has {written.rows} rows instead of those of the files it was merged from")
    return written

"""Verifies an archive: finds gaps, overlaps, and files that are missing, duplicated or damaged.

Gaps and overlaps refer to the ranges that were read. Offsets without a record are not gaps: transaction markers use
offsets, and compaction removes records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from crc32c import crc32c

from ottla.archive.failures import DamagedError
from ottla.archive.manifest import DATA, ArchivedFile, Manifest, ManifestLog
from ottla.archive.ranges import OffsetRange, gaps, overlaps
from ottla.archive.store import Store
from ottla.client.consumer.types import TopicPartition

NOTES = frozenset({"leftover"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of the verification."""

    kind: str
    """gap, lost, overlap, missing, doubled, different, damaged, manifest; or leftover, which is not a fault."""
    where: str
    text: str

    @property
    def is_fault(self) -> bool:
        """False if the finding only informs and does not question the archive."""
        return self.kind not in NOTES


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the verification."""

    findings: list[Finding]
    file_count: int
    rows: int
    offsets: int

    @property
    def faults(self) -> list[Finding]:
        """The findings that make the verification fail."""
        return [each for each in self.findings if each.is_fault]


def verify(store: Store, *, deep: bool = False) -> Verdict:
    """Checks the manifest, the directory and the footers of the files. `deep` also reads every byte."""
    try:
        manifest = ManifestLog(store).load()
    except DamagedError as damage:
        return Verdict([Finding("manifest", store.root, str(damage))], 0, 0, 0)
    findings = [
        *check_ranges(manifest),
        *check_spans(manifest),
        *check_directory(store, manifest),
        *(finding for file in manifest.files.values() for finding in check_file(store, file, deep=deep)),
    ]
    offsets = sum(len(each) for at in manifest.partitions() for each in manifest.archived(at))
    rows = sum(file.rows for file in manifest.files.values())
    return Verdict(findings, len(manifest.files), rows, offsets)


def check_ranges(manifest: Manifest) -> Iterator[Finding]:
    """Finds gaps and overlaps in the ranges that were read. Pure."""
    for at in manifest.partitions():
        read, lost = manifest.ranges.get(at, []), manifest.lost.get(at, [])
        for each in lost:
            text = f"offsets {each} were deleted on the broker before they were archived"
            yield Finding("lost", str(at), text)
        for each in gaps([*read, *lost]):
            yield Finding("gap", str(at), f"offsets {each} were never read")
        for each in overlaps([*read, *lost]):
            yield Finding("overlap", str(at), f"offsets {each} were archived twice")


def check_spans(manifest: Manifest) -> Iterator[Finding]:
    """Checks that each file is within the ranges that were read and that files of one day share no offsets. Pure."""
    for path in manifest.added_twice:
        yield Finding("doubled", path, "this file is in two commits")
    for at in manifest.partitions():
        archived = manifest.archived(at)
        by_date: dict[str, list[ArchivedFile]] = {}
        for file in manifest.files_of(at):
            by_date.setdefault(file.date, []).append(file)
            if not any(each.contains(file.span) for each in archived):
                yield Finding("overlap", file.path, f"it has offsets {file.span} of {at}, which no commit has read")
        for files in by_date.values():
            for before, after in pairwise(files):
                if before.span.intersection(after.span) is not None:
                    yield Finding("doubled", after.path, f"its offsets {after.span} are also in {before.path}")


def check_directory(store: Store, manifest: Manifest) -> Iterator[Finding]:
    """Compares the files in the directory with the manifest."""
    there = {file.path: file.size_bytes for file in store.list_files(DATA, recursive=True)}
    for path, file in manifest.files.items():
        if path not in there:
            yield Finding("missing", path, f"{file.rows} records of {file.at}, offsets {file.span}, are missing")
    for path in there.keys() - manifest.files.keys() - manifest.retired.keys():
        yield _unnamed(store, manifest, path)


def _unnamed(store: Store, manifest: Manifest, path: str) -> Finding:
    """Classifies a file that no commit names. A copy of archived records is a fault: it would duplicate them for
    programs that read the directory without the manifest."""
    try:
        footer = _Footer.read(store, path)
    except (OSError, pa.ArrowException):
        return Finding("leftover", path, "incomplete file in no commit, from a run that was killed or is in progress")
    known = manifest.archived(footer.at) if footer.at is not None else []
    if footer.span is not None and any(each.intersection(footer.span) is not None for each in known):
        text = f"this file is in no commit, and its offsets {footer.span} of {footer.at} are archived in other files"
        return Finding("doubled", path, text)
    return Finding("leftover", path, "this file is in no commit: it comes from a run that was killed or is in progress")


def check_file(store: Store, file: ArchivedFile, *, deep: bool) -> Iterator[Finding]:
    """Checks one file. A missing file is ignored, because `check_directory` reports it."""
    if not store.exists(file.path):
        return
    try:
        footer = _Footer.read(store, file.path)
    except (OSError, pa.ArrowException) as cause:
        yield Finding("damaged", file.path, f"it cannot be read: {str(cause).splitlines()[0]}")
        return
    if footer.rows != file.rows:
        yield Finding("different", file.path, f"it has {footer.rows} rows; its commit says {file.rows}")
    if footer.span != file.span:
        yield Finding("different", file.path, f"it has offsets {footer.span}; its commit says {file.span}")
    if footer.at != file.at:
        yield Finding("different", file.path, f"it holds records of {footer.at}; its commit says {file.at}")
    if deep:
        yield from _check_bytes(store, file)


def _check_bytes(store: Store, file: ArchivedFile) -> Iterator[Finding]:
    content = store.read(file.path)
    if len(content) != file.size_bytes or crc32c(content) != file.crc32c:
        yield Finding("damaged", file.path, "its content has changed since it was written")
        return
    offsets = pq.read_table(pa.BufferReader(content), columns=["offset"])["offset"].combine_chunks()
    steps = pc.min(pc.pairwise_diff(offsets)).as_py() if len(offsets) > 1 else 1
    if steps < 1:
        yield Finding("doubled", file.path, "it contains an offset twice or out of order")


@dataclass(frozen=True, slots=True)
class _Footer:
    at: TopicPartition | None
    rows: int
    span: OffsetRange | None

    @classmethod
    def read(cls, store: Store, path: str) -> _Footer:
        with store.files.open_input_file(store.full_path(path)) as source:
            metadata = pq.ParquetFile(source).metadata
        named = metadata.metadata or {}
        at = None
        if b"ottla.topic" in named and b"ottla.partition" in named:
            at = TopicPartition(named[b"ottla.topic"].decode(), int(named[b"ottla.partition"]))
        groups = [
            column.statistics
            for group in map(metadata.row_group, range(metadata.num_row_groups))
            for column in map(group.column, range(group.num_columns))
            if column.path_in_schema == "offset"
        ]
        if not groups or any(each is None or not each.has_min_max for each in groups):
            return cls(at, metadata.num_rows, None)
        span = OffsetRange(min(each.min for each in groups), max(each.max for each in groups) + 1)
        return cls(at, metadata.num_rows, span)

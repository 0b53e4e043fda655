"""Writes archives without Spark, file by file, for tests of the manifest and of `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from ottla.archive.manifest import ArchivedFile, Change, ManifestLog
from ottla.archive.ranges import OffsetRange
from ottla.archive.store import Store
from ottla.client.consumer.types import TopicPartition
from ottla.spark.jobs.archive_files import FILE_SCHEMA, FileWriter

AT = TopicPartition("orders", 0)
DATE = "2026-11-16"
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def records(offsets: Sequence[int]) -> pa.Table:
    count = len(offsets)
    columns = [
        pa.array([b"k%d" % offset for offset in offsets], pa.binary()),
        pa.array([b"v%d" % offset for offset in offsets], pa.binary()),
        pa.nulls(count, FILE_SCHEMA.field("headers").type),
        pa.array(offsets, pa.int64()),
        pa.array([NOON + timedelta(milliseconds=offset) for offset in offsets], pa.timestamp("us", tz="UTC")),
        pa.array([0] * count, pa.int32()),
    ]
    return pa.Table.from_arrays(columns, schema=FILE_SCHEMA)


def write_file(store: Store, asked: OffsetRange, offsets: Sequence[int], *, attempt: str = "a") -> ArchivedFile:
    name = f"{asked.start:020d}-{asked.end:020d}.c0.{attempt}.parquet"
    writer = FileWriter(store, AT, DATE, name, asked)
    writer.append(records(offsets))
    return writer.close()


def append(store: Store, asked: OffsetRange, offsets: Sequence[int] | None = None) -> ArchivedFile:
    """Appends one batch of one file."""
    log = ManifestLog(store)
    file = write_file(store, asked, list(range(asked.start, asked.end)) if offsets is None else offsets)
    log.commit(log.load(), Change("append", 0, {AT: asked}, {}, [file]))
    return file

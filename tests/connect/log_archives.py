"""Writes an archive of a log as the archive job's tasks and its commit do, without Spark."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from ottla.archive.manifest import ArchivedFile, Change, ManifestLog
from ottla.archive.ranges import OffsetRange
from ottla.archive.store import Store
from ottla.client.consumer.types import TopicPartition
from ottla.spark.jobs.archive_files import ArchiveFilesWriter
from ottla.wal import Entry, SyncLog

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)


def archive_log(servers: str, topic: str, into: str | Path, *ranges: tuple[int, int], named: str | None = None) -> None:
    """Archives each range as a batch with its own commit, optionally under the name of another topic."""
    store = Store(os.fspath(into))
    log = ManifestLog(store)
    with SyncLog.open(servers, topic) as live:
        topic = named or topic
        for start, end in ranges:
            asked, manifest = OffsetRange(start, end), log.load()
            prepared = f"_prepared/{uuid.uuid4().hex}.json"
            writer = ArchiveFilesWriter(
                {
                    "root": store.root,
                    "prepared": prepared,
                    "commit": str(manifest.commit_count),
                    "ranges": json.dumps([[topic, 0, start, end]]),
                }
            )
            writer.commit([writer.write(_batches(topic, live.read_chunks(start, end)))])
            files = [ArchivedFile(**each) for each in json.loads(store.read(prepared))]
            log.commit(manifest, Change("append", 0, {TopicPartition(topic, 0): asked}, {}, files))


def _batches(topic: str, chunks: Iterator[list[Entry]]) -> Iterator[pa.RecordBatch]:
    for chunk in chunks:
        count = len(chunk)
        times = [datetime.fromtimestamp(entry.timestamp_ms / 1000, UTC) for entry in chunk]
        columns = [
            pa.array([entry.data for entry in chunk], pa.binary()),
            pa.array([topic] * count, pa.string()),
            pa.array([0] * count, pa.int32()),
            pa.array([entry.offset for entry in chunk], pa.int64()),
            pa.array(times, SCHEMA.field("timestamp").type),
            pa.array([0] * count, pa.int32()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

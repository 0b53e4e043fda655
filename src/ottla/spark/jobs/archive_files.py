"""Writes records to Parquet files by topic, day and partition, on Spark's workers.

The name of a file consists of the offset range of its batch, the commit that will name it, and the attempt that wrote
it. So a task that runs twice writes two files and never overwrites one. The commit names those of the attempt that
Spark accepted; the next run removes all others.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from crc32c import crc32c
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from ottla.archive.manifest import DATA, ArchivedFile
from ottla.archive.ranges import OffsetRange
from ottla.archive.store import Store
from ottla.client.consumer.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

PREPARED = "_prepared"
FORMAT = "ottla_archive_files"
ROW_GROUP_BYTES = 32 * 1024 * 1024

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
FILE_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
"""The topic, the day and the partition are in the path, as readers of partitioned Parquet directories expect."""


def write_files(
    rows: DataFrame, store: Store, commit_number: int, ranges: dict[TopicPartition, OffsetRange]
) -> list[ArchivedFile]:
    """Writes the rows. The files are durable when it returns, but no reader sees them before a commit names them."""
    prepared = f"{PREPARED}/{uuid.uuid4().hex}.json"
    rows.sparkSession.dataSource.register(ArchiveFiles)
    writer = rows.write.format(FORMAT).mode("append").option("root", store.root).option("prepared", prepared)
    wanted = [[*at, each.start, each.end] for at, each in ranges.items()]
    writer.option("commit", str(commit_number)).option("ranges", json.dumps(wanted)).save()
    files = [ArchivedFile(**entry) for entry in json.loads(store.read(prepared))]
    store.delete(prepared)
    return files


class ArchiveFiles(DataSource):
    """The data source that `write_files` writes to. Its tasks return the manifest entries of their files."""

    @classmethod
    def name(cls) -> str:
        """Returns the format under which `write_files` registers the source."""
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Returns the writer. `overwrite` has no effect: files get new names."""
        return ArchiveFilesWriter(dict(self.options))


class FilesWritten(WriterCommitMessage):
    """The message of a task to the driver."""

    def __init__(self, files: list[ArchivedFile]) -> None:
        self.entries = [asdict(each) for each in files]


class ArchiveFilesWriter(DataSourceArrowWriter):
    """Writes one batch of an archive."""

    def __init__(self, options: dict[str, str]) -> None:
        self._root = options["root"]
        self._prepared = options["prepared"]
        self._commit_number = int(options["commit"])
        rows = json.loads(options["ranges"])
        self._ranges = {TopicPartition(topic, part): OffsetRange(start, end) for topic, part, start, end in rows}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes the rows of a task."""
        store = Store(self._root)
        attempt = uuid.uuid4().hex[:12]
        open_files: dict[tuple[TopicPartition, str], FileWriter] = {}
        for batch in iterator:
            for at, date, part in split(batch):
                writer = open_files.get((at, date))
                if writer is None:
                    asked = self._ranges[at]
                    name = f"{asked.start:020d}-{asked.end:020d}.c{self._commit_number}.{attempt}.parquet"
                    writer = open_files[at, date] = FileWriter(store, at, date, name, asked)
                writer.append(part)
        return FilesWritten([each.close() for each in open_files.values()])

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Writes the entries to a file for the job, because Spark runs this in a process of its own on the driver."""
        entries = [entry for each in messages if isinstance(each, FilesWritten) for entry in each.entries]
        Store(self._root).create(self._prepared, json.dumps(entries).encode())


def split(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, str, pa.Table]]:
    """Splits a batch by partition and day (UTC)."""
    table = pa.Table.from_batches([batch])
    dates = pc.cast(pc.floor_temporal(pc.cast(table["timestamp"], pa.timestamp("us")), unit="day"), pa.date32())
    table = table.append_column("date", dates)
    keys = table.select(["topic", "partition", "date"]).group_by(["topic", "partition", "date"]).aggregate([])
    for key in keys.to_pylist():
        part = table
        if keys.num_rows > 1:
            is_mine = pc.and_(
                pc.and_(pc.equal(table["topic"], key["topic"]), pc.equal(table["partition"], key["partition"])),
                pc.equal(table["date"], pa.scalar(key["date"], pa.date32())),
            )
            part = table.filter(is_mine)
        yield TopicPartition(key["topic"], key["partition"]), key["date"].isoformat(), shaped(part)


def shaped(table: pa.Table) -> pa.Table:
    """Converts a table to the columns of the files, in their order and types."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in FILE_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=FILE_SCHEMA)


class FileWriter:
    """Writes one file, and computes its size and checksum on the way."""

    def __init__(self, store: Store, at: TopicPartition, date: str, name: str, asked: OffsetRange) -> None:
        directory = f"{DATA}/topic={at.topic}/date={date}/partition={at.partition}"
        self._store, self._at, self._date, self._asked = store, at, date, asked
        self._path = f"{directory}/{name}"
        store.make_directory(directory)
        self._sink = SummingSink(store.files.open_output_stream(store.full_path(self._path)))
        named = {"ottla.topic": at.topic, "ottla.partition": str(at.partition), "ottla.date": date}
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"), FILE_SCHEMA.with_metadata(named), compression="zstd"
        )
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._first: int | None = None
        self._last = -1
        self._rows = 0
        self._timestamps: list[int] = []

    def append(self, part: pa.Table) -> None:
        """Appends rows. Raises ValueError if their offsets are out of order or out of range."""
        bounds = pc.min_max(part["offset"]).as_py()
        if bounds["min"] <= self._last or not self._asked.contains(OffsetRange(bounds["min"], bounds["max"] + 1)):
            raise ValueError(
                f"{self._at}: the source returned offsets {bounds['min']}-{bounds['max']} after {self._last}, "
                f"requested {self._asked}"
            )
        self._first = bounds["min"] if self._first is None else self._first
        self._last = bounds["max"]
        self._rows += len(part)
        times = pc.min_max(pc.cast(part["timestamp"], pa.int64())).as_py()
        self._timestamps = [min([times["min"], *self._timestamps]), max([times["max"], *self._timestamps])]
        self._waiting.append(part)
        self._waiting_bytes += part.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting).combine_chunks())
            self._waiting, self._waiting_bytes = [], 0

    def close(self) -> ArchivedFile:
        """Finishes the file, which is durable when this returns."""
        self._flush()
        self._writer.close()
        self._sink.close()
        self._store.sync(self._path)
        if self._first is None:
            raise ValueError(f"{self._path} has no record")
        return ArchivedFile(
            path=self._path,
            topic=self._at.topic,
            partition=self._at.partition,
            date=self._date,
            first_offset=self._first,
            last_offset=self._last,
            rows=self._rows,
            size_bytes=self._sink.size_bytes,
            crc32c=self._sink.crc32c,
            timestamp_min_ms=self._timestamps[0] // 1000,
            timestamp_max_ms=self._timestamps[1] // 1000,
        )


class SummingSink:
    """A stream that computes the length and the checksum of what is written to it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.size_bytes = 0
        self.crc32c = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """Passes the bytes on and adds them to the length and the CRC-32C."""
        content = bytes(data)
        self.crc32c = crc32c(content, self.crc32c)
        self.size_bytes += len(content)
        self._stream.write(content)
        return len(content)

    def flush(self) -> None:
        """Flushes the stream below."""
        self._stream.flush()

    def close(self) -> None:
        """Closes the stream below, once."""
        if not self.closed:
            self.closed = True
            self._stream.close()

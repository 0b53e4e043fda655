"""How fast `restore --at` is, beside what Spark does with the same data as plain Parquet.

    python benchmarks/restore.py --data DIR [--changes 5000000] [--keys 1000000] [--runs 2] [--only TEXT]

Changes of 100 bytes (JSON, the plain envelope; one in twenty is a delete) are in an archive, as `archive run` writes
it, and a table has a snapshot of the first nine tenths. They are generated once and stay in DIR. The steps take turns
in one session and write their rows as Parquet. The fastest run counts; the first one, which includes compilation, is
shown too. CPU seconds, the fewest of a run, are those of this process and of Spark; on a shared machine they are
steadier.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from ottla.archive.manifest import DATA, ArchivedFile, Change, ManifestLog
from ottla.archive.ranges import OffsetRange
from ottla.archive.store import Store
from ottla.bench.processes import cpu_seconds_below
from ottla.bench.quotients import rate
from ottla.cli.output import print_table, say
from ottla.client.consumer.types import TopicPartition
from ottla.spark.jobs.archive_files import FILE_SCHEMA, FileWriter
from ottla.spark.jobs.changes import Envelope
from ottla.spark.jobs.materialize import materialize
from ottla.spark.jobs.restore import AtEnd, AtTime, Point, restore
from ottla.spark.jobs.restore_targets import Target, table_for_output, write_output
from ottla.spark.jobs.table_history import History
from ottla.spark.jobs.tables import Table
from ottla.spark.session import new_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC, DATE, PARTITIONS = "changes", "2026-11-16", 2
START_US = 1_794_787_200_000_000
VALUE_BYTES = 100
DELETES = 0.05
ROWS_A_FILE = 500_000
SNAPSHOT_SHARE = 0.9


class Step(NamedTuple):
    name: str
    changes: int
    run: Callable[[], int]
    """Returns the number of rows."""


class Took(NamedTuple):
    rows: int
    first_s: float
    best_s: float
    cpu_s: float


def rows_of(chance: random.Random, keys: int, partition: int, offsets: range) -> pa.Table:
    """Generates the rows of one partition. A key is always in the same partition."""
    numbers = [chance.randrange(keys // PARTITIONS) * PARTITIONS + partition for _ in offsets]
    is_delete = [chance.random() < DELETES for _ in offsets]
    values = [
        None if gone else json.dumps({"id": number, "n": offset, "note": ""}).encode()
        for number, gone, offset in zip(numbers, is_delete, offsets, strict=True)
    ]
    padded = [
        None if value is None else value[:-2] + b"x" * (VALUE_BYTES - len(value)) + value[-2:] for value in values
    ]
    columns = [
        pa.array([b"%d" % number for number in numbers], pa.binary()),
        pa.array(padded, pa.binary()),
        pa.nulls(len(offsets), FILE_SCHEMA.field("headers").type),
        pa.array(offsets, pa.int64()),
        pa.array([START_US + offset * 1000 for offset in offsets], pa.timestamp("us", tz="UTC")),
        pa.array([0] * len(offsets), pa.int32()),
    ]
    return pa.Table.from_arrays(columns, schema=FILE_SCHEMA)


def make_archive(store: Store, changes: int, keys: int) -> None:
    """Writes an archive in two commits, so that a snapshot can be made of the first."""
    chance, manifest_log = random.Random(7), ManifestLog(store)
    each = changes // PARTITIONS
    for start, end in ((0, int(each * SNAPSHOT_SHARE)), (int(each * SNAPSHOT_SHARE), each)):
        files: list[ArchivedFile] = []
        for number in range(PARTITIONS):
            for first in range(start, end, ROWS_A_FILE):
                offsets = range(first, min(first + ROWS_A_FILE, end))
                files.append(write_file(store, number, offsets, rows_of(chance, keys, number, offsets)))
        ranges = {TopicPartition(TOPIC, number): OffsetRange(start, end) for number in range(PARTITIONS)}
        manifest_log.commit(manifest_log.load(), Change("append", 0, ranges, {}, files))


def write_file(store: Store, partition: int, offsets: range, rows: pa.Table) -> ArchivedFile:
    asked = OffsetRange(offsets.start, offsets.stop)
    name = f"{asked.start:020d}-{asked.end:020d}.c0.made.parquet"
    writer = FileWriter(store, TopicPartition(TOPIC, partition), DATE, name, asked)
    writer.append(rows)
    return writer.close()


def history_of(archive: Store) -> History:
    return History.open(TOPIC, archive=archive, log=None)


def make_snapshot(spark: SparkSession, archive: Store, table: Table, changes: int) -> None:
    """Makes a snapshot of the first commit only, from an archive that ends there."""
    first = Store(f"{archive.root}-first")
    manifest = Path(first.root, "_manifest")
    manifest.mkdir(parents=True)
    Path(first.root, DATA).symlink_to(Path(archive.root, DATA).absolute())
    shutil.copy(sorted(Path(archive.root, "_manifest").iterdir())[0], manifest)
    made = materialize(spark, history_of(first), table, Envelope.PLAIN)
    shutil.rmtree(first.root)
    assert made is not None
    assert sum(made.covers.values()) == int(changes // PARTITIONS * SNAPSHOT_SHARE) * PARTITIONS


def steps(spark: SparkSession, directory: Path, changes: int) -> Iterator[Step]:
    archive, table = Store(str(directory / "archive")), Table(Store(str(directory / "table")))
    out = directory / "out"

    def plain() -> DataFrame:
        return spark.read.parquet(str(directory / "archive" / DATA))

    def read() -> int:
        plain().write.format("noop").mode("overwrite").save()
        return changes

    def last_values() -> int:
        from pyspark.sql import functions as sf

        last = plain().groupBy("key").agg(sf.max_by("value", sf.struct("partition", "offset")).alias("value"))
        last.where("value IS NOT NULL").write.mode("overwrite").parquet(str(out))
        return spark.read.parquet(str(out)).count()

    def restored(point: Point, table: Table | None) -> int:
        found = restore(spark, history_of(archive), point, Envelope.PLAIN, table=table)
        write_output(table_for_output(found.rows), Target("parquet", str(out), TOPIC), overwrite=True)
        found.close()
        return found.row_count

    each = changes // PARTITIONS
    middle = AtTime(START_US // 1000 + each // 2)
    yield Step("plain Parquet, read", changes, read)
    yield Step("plain Parquet, last value by key", changes, last_values)
    yield Step("restore --at end, from the archive", changes, lambda: restored(AtEnd(), None))
    yield Step("restore --at the time of the middle", changes // 2, lambda: restored(middle, None))
    since = changes - int(each * SNAPSHOT_SHARE) * PARTITIONS
    yield Step("restore --at end, snapshot and changes", since, lambda: restored(AtEnd(), table))


def measure(chosen: list[Step], runs: int) -> dict[Step, Took]:
    took: dict[Step, Took] = {}
    for _ in range(runs):
        for step in chosen:
            began_s, before_s = time.monotonic(), cpu_seconds_below(os.getpid())
            rows = step.run()
            wall_s, cpu_s = time.monotonic() - began_s, cpu_seconds_below(os.getpid()) - before_s
            say(f"{step.name}: {wall_s:.1f} s, CPU {cpu_s:.1f} s")
            last = took.get(step, Took(rows, wall_s, wall_s, cpu_s))
            took[step] = Took(rows, last.first_s, min(last.best_s, wall_s), min(last.cpu_s, cpu_s))
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a directory for the archive, which is kept")
    parser.add_argument("--changes", type=int, default=5_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--only", default="", help="only steps whose name contains this text")
    arguments = parser.parse_args()
    begun_s = time.monotonic()
    directory = arguments.data / f"{arguments.changes}-{arguments.keys}"
    if not (directory / "made").exists():
        shutil.rmtree(directory, ignore_errors=True)
        make_archive(Store(str(directory / "archive")), arguments.changes, arguments.keys)
        (directory / "made").touch()
        print(f"made the archive in {time.monotonic() - begun_s:.1f} s")
    spark = new_session("benchmark of restore")
    table = Table(Store(str(directory / "table")))
    if not table.snapshots():
        made_s = time.monotonic()
        make_snapshot(spark, Store(str(directory / "archive")), table, arguments.changes)
        say(f"made the snapshot in {time.monotonic() - made_s:.1f} s")
    chosen = [each for each in steps(spark, directory, arguments.changes) if arguments.only in each.name]
    took = measure(chosen, arguments.runs)
    shown = []
    for step in chosen:
        rows, first_s, best_s, cpu_s = took[step]
        speed = f"{rate(step.changes, best_s):,.0f}"
        counts = (f"{step.changes:,}", f"{rows:,}")
        shown.append((step.name, *counts, f"{first_s:.1f}", f"{best_s:.1f}", speed, f"{cpu_s:.1f}"))
    headings = ["step", "changes", "rows", "first run s", "best s", "changes/s", "CPU s"]
    print_table(headings, shown, right=headings[1:])
    spark.stop()


if __name__ == "__main__":
    main()

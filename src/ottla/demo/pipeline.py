"""The third part of the demo: a change log is archived, materialized as a table, and restored to before a bad delete.

The topic's retention waits for the archive and then deletes everything, so the restore reads only Parquet.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.client import Admin, Producer, TopicPartition
from ottla.demo.customers import MINUTE_MS, Day

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "customers"
PARTITIONS = 3
GROUP = "demo-archive"
SETTINGS = {"retention.ms": "1000", "segment.bytes": "65536", "ottla.archive.group": GROUP}
RETENTION_PATIENCE_S = 30.0
LOOK_AGAIN_S = 0.1

Say = Callable[[str], None]


@dataclass
class PipelineResults:
    """The results of this part."""

    changes: int = 0
    archived: int = 0
    faults: int = 0
    left_in_log: int = 0
    rows_now: int = 0
    rows_restored: int = 0
    is_same: bool = False
    """Whether the restored table equals the original row by row."""
    rows_by_minute: list[tuple[int, int]] | None = None
    """Time in ms, and the number of rows in the table after that minute."""
    took_s: float = 0.0


def run_pipeline(bootstrap: str, directory: Path, day: Day, say: Say) -> PipelineResults:
    """Runs the pipeline. Raises ImportError without PySpark and JavaMissingError without Java."""
    from ottla.spark.session import new_session

    story, began_s = PipelineResults(changes=len(day.changes)), time.monotonic()
    say("starting Spark ...")
    spark = new_session("ottla demo")
    try:
        asyncio.run(_write(bootstrap, day))
        say(f"{story.changes:,} changes of {TOPIC}; at 15:00 a bad job deletes {day.bad_job_deleted:,} of them")
        _archive(spark, bootstrap, directory, story, say)
        _restore(spark, bootstrap, directory, day, story, say)
    finally:
        spark.stop()
    story.took_s = time.monotonic() - began_s
    return story


async def _write(bootstrap: str, day: Day) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, configs=SETTINGS)
    async with Producer(bootstrap, linger_ms=5) as producer:
        for each in day.changes:
            value = None if each.row is None else each.row.encode()
            await producer.enqueue(TOPIC, value, b"%d" % each.id, timestamp_ms=each.timestamp_ms)
        await producer.flush()


def _archive(spark: SparkSession, bootstrap: str, directory: Path, story: PipelineResults, say: Say) -> None:
    from ottla.archive.manifest import ManifestLog
    from ottla.archive.store import Store
    from ottla.archive.verification import verify
    from ottla.spark.jobs.archive import archive_available
    from ottla.spark.jobs.archive_group import ArchiveGroup
    from ottla.spark.jobs.live_log import BrokerLog

    store, log = Store(str(directory / "archive")), BrokerLog(bootstrap)
    tell = ArchiveGroup(bootstrap, GROUP, say).tell
    story.archived = sum(batch.rows for batch in archive_available(spark, log, store, [TOPIC], tell=tell))
    story.faults = len(verify(store, deep=True).faults)
    manifest = ManifestLog(store).load()
    story.rows_by_minute = rows_by_minute(directory / "archive" / path for path in sorted(manifest.files))
    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    deadline_s = time.monotonic() + RETENTION_PATIENCE_S
    while True:
        story.left_in_log = sum(len(each) for each in log.extents(partitions).values())
        if not story.left_in_log or time.monotonic() > deadline_s:
            break
        time.sleep(LOOK_AGAIN_S)
    say(f"{story.archived:,} records archived; retention waited for that, and leaves {story.left_in_log:,} in the log")


def rows_by_minute(files: Iterable[Path]) -> list[tuple[int, int]]:
    """Computes the table's size over time from the archive's files. Any Parquet reader could do this."""
    import pyarrow.parquet as pq

    there: set[bytes] = set()
    counts: dict[int, int] = {}
    tables = [pq.read_table(each, columns=["key", "value", "timestamp"], partitioning=None) for each in files]
    changes = sorted(
        ((row["timestamp"], row["key"], row["value"]) for table in tables for row in table.to_pylist()),
        key=lambda change: change[0],
    )
    for at, key, value in changes:
        (there.discard if value is None else there.add)(key)
        counts[int(at.timestamp() * 1000) // MINUTE_MS * MINUTE_MS] = len(there)
    return list(counts.items())


def _restore(spark: SparkSession, bootstrap: str, directory: Path, day: Day, story: PipelineResults, say: Say) -> None:
    from ottla.archive.store import Store
    from ottla.spark.jobs.changes import Envelope
    from ottla.spark.jobs.live_log import BrokerLog
    from ottla.spark.jobs.materialize import materialize
    from ottla.spark.jobs.restore import AtTime, restore
    from ottla.spark.jobs.restore_targets import parse_target, table_for_output, write_output
    from ottla.spark.jobs.table_history import History
    from ottla.spark.jobs.tables import Table

    history = History.open(TOPIC, archive=Store(str(directory / "archive")), log=BrokerLog(bootstrap))
    now = materialize(spark, history, Table(Store(str(directory / "table"))), Envelope.PLAIN)
    story.rows_now = now.rows if now is not None else 0
    found = restore(
        spark, history, AtTime(day.bad_job_ms), Envelope.PLAIN, columns={"id": "bigint", "balance": "bigint"}
    )
    place = directory / "before.db"
    write_output(table_for_output(found.rows, key_column="id"), parse_target(f"sqlite:{place}", TOPIC))
    with closing(sqlite3.connect(place)) as database:
        rows = dict(database.execute(f"SELECT id, balance FROM {TOPIC}").fetchall())
    story.rows_restored = len(rows)
    story.is_same = rows == {number: json.loads(row)["balance"] for number, row in day.before.items()}
    say(
        f"the table has {story.rows_now:,} rows now; restored to the moment before the bad job: {story.rows_restored:,}"
    )

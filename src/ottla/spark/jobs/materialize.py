"""Builds a table from a change log: the next snapshot is the last one plus the changes since.

table = Table(Store("tables/customers"))
materialize(spark, History.open("customers", archive=None, log=BrokerLog(bootstrap)), table, Envelope.DEBEZIUM)
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ottla.archive.failures import PipelineError
from ottla.archive.ranges import OffsetRange
from ottla.client.consumer.types import TopicPartition
from ottla.spark.jobs.changes import Envelope, FoldResult, fold, infer_columns, parse_changes, with_columns
from ottla.spark.jobs.table_history import History, refuse_bad_records
from ottla.spark.jobs.tables import DEAD_LETTERS, SNAPSHOTS, Snapshot, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEAD_LETTER_ADVICE = "Nothing was changed; --bad-records dead-letter sets them aside with their reasons and continues"


@dataclass(frozen=True, slots=True)
class MaterializeOptions:
    """Options of a materialization."""

    dead_letters: bool = False
    """Writes records that are not changes to dead letters, with their reasons. Otherwise they raise BadRecordsError."""
    incomplete: bool = False
    """Uses what is left of a log whose beginning was deleted. Otherwise that raises LostOffsetsError."""
    columns: dict[str, str] | None = None
    """Names and Spark types of the values' fields; inferred from the rows if None."""


def materialize(
    spark: SparkSession, history: History, table: Table, envelope: Envelope, options: MaterializeOptions | None = None
) -> Snapshot | None:
    """Writes a new snapshot and returns it; None if nothing has changed since the last one."""
    options = options or MaterializeOptions()
    with table.store.writer_lock():
        known = table.require(history.topic, envelope)
        table.sweep(known)
        last = known[-1] if known else None
        wanted, begins = changes_since(history, last)
        if last is not None and not any(len(each) for each in wanted.values()):
            return None
        plan = history.plan(wanted)
        if not options.incomplete:
            plan.check()
        begins |= {at.partition: many[-1].end for at, many in plan.missing.items()}
        changes = parse_changes(history.read(spark, plan), envelope, one_partition=len(history.partitions) == 1)
        folded = fold(changes, table.read(spark, last) if last is not None else None)
        try:
            return _write(table, folded, changes, options, _next(history, envelope, last, wanted, begins))
        finally:
            folded.persisted.unpersist()


def changes_since(history: History, last: Snapshot | None) -> tuple[dict[TopicPartition, OffsetRange], dict[int, int]]:
    """Returns what the next snapshot reads, and where its history begins. Raises PipelineError if the log is another
    one."""
    wanted = {}
    for at, end in history.ends.items():
        start = last.offset_of(at) if last is not None else 0
        if start > end:
            raise PipelineError(
                f"{at} ends at offset {end}, but the table already has its changes up to {start}: the topic "
                "was deleted and created again, or this is another cluster. Create a new table from it"
            )
        wanted[at] = OffsetRange(start, end)
    return wanted, dict(last.begins) if last is not None else {}


def _next(
    history: History,
    envelope: Envelope,
    last: Snapshot | None,
    wanted: dict[TopicPartition, OffsetRange],
    begins: dict[int, int],
) -> Snapshot:
    """Returns the new snapshot, before its rows are known."""
    number = last.number + 1 if last is not None else 0
    return Snapshot(
        number=number,
        topic=history.topic,
        envelope=envelope,
        at_ms=time.time_ns() // 1_000_000,
        path=f"{SNAPSHOTS}/{number:08d}-{uuid.uuid4().hex[:12]}",
        covers={at.partition: each.end for at, each in wanted.items()},
        begins={at.partition: begins.get(at.partition, 0) for at in wanted},
        rows=0,
        changes=0,
    )


def _write(
    table: Table, folded: FoldResult, changes: DataFrame, options: MaterializeOptions, snapshot: Snapshot
) -> Snapshot:
    dead_letters = None
    if folded.bad_records:
        bad = changes.where("reason IS NOT NULL")
        if not options.dead_letters:
            refuse_bad_records(bad, folded.bad_records, DEAD_LETTER_ADVICE)
        dead_letters = f"{DEAD_LETTERS}/{snapshot.path.split('/')[-1]}"
        table.write(bad, dead_letters)
    columns = options.columns if options.columns is not None else infer_columns(folded.state)
    table.write(with_columns(folded.state, columns), snapshot.path)
    written = replace(
        snapshot,
        rows=folded.rows,
        changes=folded.changes,
        columns=columns,
        bad_records=folded.bad_records,
        dead_letters=dead_letters,
    )
    table.commit(written)
    return written

"""Restores the table of a change log to a point: the newest snapshot before it, and the changes up to it.

A point is a time or an offset for each partition, exclusive. As on brokers, a time means everything before the first
record that is not older, so a clock that went back does not split the history of a partition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.archive.failures import PipelineError
from ottla.archive.ranges import OffsetRange
from ottla.client.consumer.types import TopicPartition
from ottla.spark.jobs.changes import Envelope, fold, infer_columns, parse_changes, with_columns
from ottla.spark.jobs.table_history import History, refuse_bad_records
from ottla.spark.jobs.tables import Snapshot, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SKIP_ADVICE = "Use --bad-records skip to skip them"
_PLACE = re.compile(r"(\d+):(\d+)")


@dataclass(frozen=True, slots=True)
class AtTime:
    """Restores the table as of a time, in milliseconds since the Unix epoch."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Restores the table before these offsets, one for each partition."""

    offsets: dict[int, int]


@dataclass(frozen=True, slots=True)
class AtEnd:
    """Everything there is."""


Point = AtTime | AtOffsets | AtEnd


@dataclass(frozen=True, slots=True)
class RestoredTable:
    """A restored table."""

    rows: DataFrame
    """The rows: where each comes from, and then the fields of its value."""
    state: DataFrame
    """Persisted until `close`."""
    cut: dict[TopicPartition, int]
    snapshot: Snapshot | None
    from_archive: int
    from_log: int
    """The number of offsets read from the log; `from_archive` is that of the archive."""
    row_count: int
    bad_records: int

    def close(self) -> None:
        """Frees the cached state."""
        self.state.unpersist()


def parse_offsets(text: str, partition_count: int) -> AtOffsets | None:
    """Parses `1200` for a topic with one partition, or `0:1200,1:900` for any. Returns None if it is neither.

    Raises PipelineError if it does not name every partition.
    """
    if text.isdecimal():
        if partition_count != 1:
            raise PipelineError(
                f"the topic has {partition_count} partitions; give an offset for each, such as 0:1200,1:900"
            )
        return AtOffsets({0: int(text)})
    places = [_PLACE.fullmatch(each.strip()) for each in text.split(",")]
    if not all(places):
        return None
    offsets = {int(each.group(1)): int(each.group(2)) for each in places if each is not None}
    if sorted(offsets) != list(range(partition_count)):
        raise PipelineError(f"the topic has partitions 0 to {partition_count - 1}; give one offset for each")
    return AtOffsets(offsets)


def cut_at(spark: SparkSession, history: History, point: Point) -> dict[TopicPartition, int]:
    """Returns, for each partition, the first offset that is not included."""
    ends = history.ends
    if isinstance(point, AtEnd):
        return ends
    if isinstance(point, AtTime):
        return history.offsets_at(spark, point.time_ms)
    beyond = {at: point.offsets[at.partition] for at in ends if point.offsets[at.partition] > ends[at]}
    if beyond:
        named = ", ".join(f"{at} ends at {ends[at]}, not {offset}" for at, offset in beyond.items())
        raise PipelineError(f"this point is after the end of the log: {named}")
    return {at: point.offsets[at.partition] for at in ends}


def choose_snapshot(snapshots: list[Snapshot], cut: Mapping[TopicPartition, int]) -> Snapshot | None:
    """Returns the newest snapshot with nothing after the cut. Pure."""
    return next((each for each in reversed(snapshots) if each.is_before(cut)), None)


def restore(
    spark: SparkSession,
    history: History,
    point: Point,
    envelope: Envelope,
    *,
    table: Table | None = None,
    skip_bad: bool = False,
    incomplete: bool = False,
    columns: dict[str, str] | None = None,
) -> RestoredTable:
    """Restores a table.

    Raises LostOffsetsError if changes before the point are not available any more, unless `incomplete` is set.
    """
    cut = cut_at(spark, history, point)
    snapshot = choose_snapshot(table.require(history.topic, envelope), cut) if table is not None else None
    starts = {at: snapshot.offset_of(at) if snapshot is not None else 0 for at in cut}
    plan = history.plan({at: OffsetRange(starts[at], end) for at, end in cut.items()})
    if not incomplete:
        plan.check()
    changes = parse_changes(history.read(spark, plan), envelope, one_partition=len(history.partitions) == 1)
    folded = fold(changes, table.read(spark, snapshot) if table is not None and snapshot is not None else None)
    if folded.bad_records and not skip_bad:
        refuse_bad_records(changes.where("reason IS NOT NULL"), folded.bad_records, SKIP_ADVICE)
    return RestoredTable(
        rows=with_columns(folded.state, infer_columns(folded.state) if columns is None else columns),
        state=folded.persisted,
        cut=cut,
        snapshot=snapshot,
        from_archive=sum(len(each) for many in plan.archive.values() for each in many),
        from_log=sum(len(each) for many in plan.live.values() for each in many),
        row_count=folded.rows,
        bad_records=folded.bad_records,
    )

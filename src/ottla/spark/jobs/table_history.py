"""The history of a change log: combines the archive and the live log into one sequence of changes per partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from ottla.archive.failures import BadRecordsError, PipelineError
from ottla.archive.manifest import Manifest, ManifestLog
from ottla.archive.ranges import OffsetRange
from ottla.archive.store import Store
from ottla.client.consumer.types import TopicPartition
from ottla.spark.jobs.archive_read import first_offsets_at, read_archive
from ottla.spark.jobs.change_plan import ChangePlan, plan_changes
from ottla.spark.jobs.live_log import LiveLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BAD_RECORDS_SHOWN = 5


@dataclass(frozen=True)
class History:
    """The available changes of a topic. Without a live log, only archived ones."""

    topic: str
    archive: Store | None
    manifest: Manifest
    log: LiveLog | None
    live: dict[TopicPartition, OffsetRange]

    @classmethod
    def open(cls, topic: str, *, archive: Store | None, log: LiveLog | None) -> History:
        """Opens the history of a topic. Raises PipelineError if there is nothing of it anywhere."""
        manifest = ManifestLog(archive).load() if archive is not None else Manifest()
        live = log.extents(log.partitions([topic])) if log is not None else {}
        history = cls(topic, archive, manifest, log, live)
        if not history.partitions:
            place = f"the archive {archive.root}" if archive is not None else "the given place"
            raise PipelineError(
                f'there are no records of the topic "{topic}" in {place}, and no live log to read them from'
            )
        return history

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that are in the live log or the archive, sorted."""
        return sorted({*self.live, *self.manifest.partitions(self.topic)})

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """One past the last known offset of each partition."""
        return {
            at: max(self.live[at].end if at in self.live else 0, self.manifest.end_of(at) or 0)
            for at in self.partitions
        }

    def offsets_at(self, spark: SparkSession, time_ms: int) -> dict[TopicPartition, int]:
        """Returns the first offset of each partition at or after the time. All records before that offset are
        included."""
        found: dict[TopicPartition, int] = {}
        if self.archive is not None:
            found = first_offsets_at(spark, self.archive, self.manifest, self.partitions, time_ms)
        rest = [at for at in self.live if at not in found]
        later = self.log.offsets_at(rest, time_ms) if self.log is not None and rest else {}
        found |= {at: offset for at, offset in later.items() if offset is not None}
        return self.ends | found

    def plan(self, wanted: Mapping[TopicPartition, OffsetRange]) -> ChangePlan:
        """Plans where to read the wanted ranges."""
        archived = {at: self.manifest.archived(at) for at in self.partitions}
        return plan_changes(wanted, archived, self.live)

    def read(self, spark: SparkSession, plan: ChangePlan) -> DataFrame:
        """Returns the records of a plan, in no particular order."""
        parts = []
        if self.archive is not None and plan.archive:
            parts.append(read_archive(spark, self.archive, self.manifest, plan.archive))
        rounds = max((len(many) for many in plan.live.values()), default=0)
        for number in range(rounds if self.log is not None else 0):
            ranges = {at: many[number] for at, many in plan.live.items() if len(many) > number}
            parts.append(self.log.read(spark, ranges))  # type: ignore[union-attr] # no rounds without a log
        if not parts:
            return read_archive(spark, Store("."), Manifest(), {})
        return reduce(lambda one, other: one.unionByName(other), parts)


def refuse_bad_records(bad: DataFrame, count: int, advice: str) -> None:
    """Raises BadRecordsError, which names the first bad records, if there are any."""
    if not count:
        return
    first = bad.orderBy("partition", "offset").limit(BAD_RECORDS_SHOWN).collect()
    named = "; ".join(f"{row['topic']}-{row['partition']} offset {row['offset']}: {row['reason']}" for row in first)
    more = f" (and {count - len(first)} more)" if count > len(first) else ""
    raise BadRecordsError(f"{count} records are not row changes: {named}{more}. {advice}")

"""A table's directory: snapshots as Parquet, and a log of commits that says which offsets each of them covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ottla.client.fetched import TopicPartition
from ottla.spark.jobs.commits import CommitLog, Json
from ottla.spark.jobs.failures import PipelineError
from ottla.spark.jobs.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMITS = "_commits"
SNAPSHOTS = "snapshots"
DEAD_LETTERS = "dead_letters"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The table after all changes before the offsets of `covers`."""

    number: int
    topic: str
    envelope: str
    at_ms: int
    path: str
    covers: dict[int, int]
    """Partition to the first offset that is not in it."""
    begins: dict[int, int]
    """Partition to the first offset that is in it: 0, unless somebody accepted less."""
    rows: int
    changes: int
    """Read since the snapshot before."""
    columns: dict[str, str] = field(default_factory=dict)
    bad_records: int = 0
    dead_letters: str | None = None

    def offset_of(self, at: TopicPartition) -> int:
        return self.covers.get(at.partition, 0)

    def is_before(self, cut: Mapping[TopicPartition, int]) -> bool:
        """Whether it has nothing that comes later than the cut."""
        limits = {at.partition: end for at, end in cut.items()}
        return all(end <= limits.get(partition, 0) for partition, end in self.covers.items())


class Table:
    """Everything that its commits name. Files that they do not name are left by jobs that were killed."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._log = CommitLog(store, COMMITS)

    def snapshots(self) -> list[Snapshot]:
        """The oldest first. DamagedError if a commit is missing or unreadable."""
        nothing: list[Snapshot] = []
        _, found = self._log.fold(nothing, _no_checkpoints, lambda known, number, body: [*known, _load(number, body)])
        return found

    def commit(self, snapshot: Snapshot) -> None:
        body: dict[str, Any] = asdict(snapshot)
        del body["number"]
        for name in ("covers", "begins"):
            body[name] = {str(partition): offset for partition, offset in body[name].items()}
        self._log.append(snapshot.number, body)

    def read(self, spark: SparkSession, snapshot: Snapshot) -> DataFrame:
        return spark.read.parquet(self.store.spark_path(snapshot.path))

    def write(self, rows: DataFrame, path: str) -> None:
        """Durable when it returns; nobody sees it before a commit names it."""
        rows.write.parquet(self.store.spark_path(path))
        for file in self.store.list_files(path):
            self.store.sync(file.path)

    def sweep(self, snapshots: list[Snapshot]) -> list[str]:
        """Removes what jobs that were killed have left; only for who has the writer's lock."""
        named = {path for each in snapshots for path in (each.path, each.dead_letters) if path}
        there = {
            "/".join(file.path.split("/")[:2])
            for directory in (SNAPSHOTS, DEAD_LETTERS)
            for file in self.store.list_files(directory, recursive=True)
        }
        gone = sorted(there - named)
        for path in gone:
            self.store.delete_directory(path)
        return gone

    def require(self, topic: str, envelope: str) -> list[Snapshot]:
        """The snapshots of this change log. PipelineError if the table is of another one."""
        known = self.snapshots()
        for each in known[-1:]:
            if (each.topic, each.envelope) != (topic, envelope):
                raise PipelineError(
                    f"{self.store.root} is the table of {each.topic} ({each.envelope}), not of {topic} ({envelope})"
                )
        return known


def _no_checkpoints(body: Json) -> list[Snapshot]:
    raise AssertionError("tables have no checkpoints: a commit is small and comes rarely")


def _load(number: int, body: Json) -> Snapshot:
    fields = {name: value for name, value in body.items() if name != "format"}
    for name in ("covers", "begins"):
        fields[name] = {int(partition): offset for partition, offset in fields[name].items()}
    return Snapshot(number=number, **fields)

"""The directory of a table: snapshots as Parquet, and a commit log that records which offsets each snapshot covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ottla.archive.commits import CommitLog, Json
from ottla.archive.failures import PipelineError
from ottla.archive.store import Store
from ottla.client.consumer.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMITS = "_commits"
SNAPSHOTS = "snapshots"
DEAD_LETTERS = "dead_letters"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The table after all changes before the offsets in `covers`."""

    number: int
    topic: str
    envelope: str
    at_ms: int
    path: str
    covers: dict[int, int]
    """The first offset of each partition that is not included."""
    begins: dict[int, int]
    """The first offset of each partition that is included: 0, unless an incomplete history was accepted."""
    rows: int
    changes: int
    """The number of changes read since the previous snapshot."""
    columns: dict[str, str] = field(default_factory=dict)
    bad_records: int = 0
    dead_letters: str | None = None

    def offset_of(self, at: TopicPartition) -> int:
        """Returns the first offset that the snapshot does not cover; 0 for an unknown partition."""
        return self.covers.get(at.partition, 0)

    def is_before(self, cut: Mapping[TopicPartition, int]) -> bool:
        """Returns whether the snapshot has nothing after the cut."""
        limits = {at.partition: end for at, end in cut.items()}
        return all(end <= limits.get(partition, 0) for partition, end in self.covers.items())


class Table:
    """The files that the commits name. Other files were left by jobs that were killed."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._log = CommitLog(store, COMMITS)

    def snapshots(self) -> list[Snapshot]:
        """Returns the snapshots, oldest first. Raises DamagedError if a commit is missing or unreadable."""
        nothing: list[Snapshot] = []
        _, found = self._log.fold(nothing, _no_checkpoints, lambda known, number, body: [*known, _load(number, body)])
        return found

    def commit(self, snapshot: Snapshot) -> None:
        """Commits a snapshot."""
        body: dict[str, Any] = asdict(snapshot)
        del body["number"]
        for name in ("covers", "begins"):
            body[name] = {str(partition): offset for partition, offset in body[name].items()}
        self._log.append(snapshot.number, body)

    def read(self, spark: SparkSession, snapshot: Snapshot) -> DataFrame:
        """Returns the rows of a snapshot."""
        return spark.read.parquet(self.store.spark_path(snapshot.path))

    def write(self, rows: DataFrame, path: str) -> None:
        """Writes rows, which are durable when this returns. Nobody sees them before a commit names them."""
        rows.write.parquet(self.store.spark_path(path))
        for file in self.store.list_files(path):
            self.store.sync(file.path)

    def sweep(self, snapshots: list[Snapshot]) -> list[str]:
        """Deletes what killed jobs left behind. The caller must hold the writer lock."""
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
        """Returns the snapshots of a change log. Raises PipelineError if the table belongs to another one."""
        known = self.snapshots()
        for each in known[-1:]:
            if (each.topic, each.envelope) != (topic, envelope):
                raise PipelineError(
                    f"{self.store.root} is the table of {each.topic} ({each.envelope}), not of {topic} ({envelope})"
                )
        return known


def _no_checkpoints(body: Json) -> list[Snapshot]:
    raise AssertionError("tables have no checkpoints, because commits are small and rare")


def _load(number: int, body: Json) -> Snapshot:
    fields = {name: value for name, value in body.items() if name != "format"}
    for name in ("covers", "begins"):
        fields[name] = {int(partition): offset for partition, offset in fields[name].items()}
    return Snapshot(number=number, **fields)

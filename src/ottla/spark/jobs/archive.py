"""Archives topics to Parquet, exactly once.

    store = Store("archive")
    for batch in archive_available(spark, BrokerLog("127.0.0.1:9092"), store, ["orders"]):
        print(batch.rows, batch.lag)

A batch reads offset ranges that begin where the manifest ends, writes files that no reader sees yet, and commits ranges
and files in one step. A crash in between leaves files that no commit names; the next run removes them and reads the
same offsets again. There is no separate checkpoint that could disagree with the archive.

`tell` is called with the archive's progress after each commit. With `ArchiveGroup(...).tell`, retention waits for the
archive.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.archive.manifest import DATA, Change, Manifest, ManifestLog
from ottla.archive.ranges import OffsetRange
from ottla.archive.store import Store
from ottla.client.consumer.types import TopicPartition
from ottla.spark.jobs.archive_files import PREPARED, write_files
from ottla.spark.jobs.archive_plan import BatchPlan, plan_batch
from ottla.spark.jobs.live_log import LiveLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Tell = Callable[[Mapping[TopicPartition, int]], None]
OFFSETS_A_BATCH = 1_000_000
RETIRED_KEPT_MS = 3_600_000
"""How long merged files are kept for readers that loaded the manifest before the merge."""


@dataclass(frozen=True, slots=True)
class ArchivedBatch:
    """The result of one batch."""

    commit_number: int
    ranges: dict[TopicPartition, OffsetRange]
    lost: dict[TopicPartition, OffsetRange]
    rows: int
    size_bytes: int
    file_count: int
    lag: int
    """The number of offsets that existed when the run began and are not archived yet."""
    duration_s: float


def archive_available(
    spark: SparkSession,
    log: LiveLog,
    store: Store,
    topics: Sequence[str],
    *,
    offsets_max: int = OFFSETS_A_BATCH,
    accept_loss: bool = False,
    tell: Tell | None = None,
) -> Iterator[ArchivedBatch]:
    """Archives what is in the log when it starts. Each batch is archived when it is yielded."""
    with store.writer_lock():
        manifest_log = ManifestLog(store)
        manifest = manifest_log.load()
        sweep(store, manifest, now_ms())
        ends = log.extents(log.partitions(topics))
        while True:
            begun = time.monotonic()
            starts = log.extents(ends)  # retention may have deleted records meanwhile
            extents = {at: OffsetRange(min(starts[at].start, ends[at].end), ends[at].end) for at in ends}
            plan = plan_batch(manifest, extents, offsets_max=offsets_max, accept_loss=accept_loss)
            if not plan.ranges and not plan.lost:
                _tell(tell, manifest, ends)  # again, because the run that committed last may have died before this
                return
            number = manifest.commit_count
            files = write_files(log.read(spark, plan.ranges), store, number, plan.ranges) if plan.ranges else []
            change = Change("append", now_ms(), plan.ranges, plan.lost, files)
            manifest = manifest_log.commit(manifest, change)
            _tell(tell, manifest, ends)
            yield ArchivedBatch(
                commit_number=number,
                ranges=plan.ranges,
                lost=plan.lost,
                rows=sum(each.rows for each in files),
                size_bytes=sum(each.size_bytes for each in files),
                file_count=len(files),
                lag=plan.lag,
                duration_s=time.monotonic() - begun,
            )


def _tell(tell: Tell | None, manifest: Manifest, partitions: Iterable[TopicPartition]) -> None:
    """Reports the progress. Call it only after planning, which rejects a topic that was deleted and recreated."""
    if tell is not None:
        ends = {at: manifest.end_of(at) for at in partitions}
        tell({at: end for at, end in ends.items() if end is not None})


def archive_continuously(
    runs: Callable[[], Iterator[ArchivedBatch]],
    *,
    interval_s: float,
    wait: Callable[[float], object] = time.sleep,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[ArchivedBatch]:
    """Runs `archive_available` repeatedly until `is_over`. Each run discovers new partitions."""
    while not is_over():
        found_any = False
        for batch in runs():
            found_any = True
            yield batch
            if is_over():
                return
        if not found_any:
            wait(interval_s)


def sweep(store: Store, manifest: Manifest, at_ms: int, *, retired_kept_ms: int = RETIRED_KEPT_MS) -> list[str]:
    """Deletes files that killed runs left behind and merged files that no reader needs any more. Returns their paths.

    The caller must hold the writer lock, because the files of a running batch look the same.
    """
    gone = [each.path for each in store.list_files(PREPARED)]
    for file in store.list_files(DATA, recursive=True):
        if file.path in manifest.files:
            continue
        retired_ms = manifest.retired.get(file.path)
        if retired_ms is None or retired_ms + retired_kept_ms <= at_ms:
            gone.append(file.path)
    for path in gone:
        store.delete(path)
    return gone


def now_ms() -> int:
    """Returns the wall-clock time in milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


__all__ = ["ArchivedBatch", "BatchPlan", "archive_available", "archive_continuously", "sweep"]

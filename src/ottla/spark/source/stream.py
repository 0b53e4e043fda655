"""The streaming source, `spark.readStream.format("ottla")`: micro-batches of offset ranges, from Spark's checkpoint.

Two initial offsets are symbolic, so that a query that dies in its first batch starts at the same place again. An empty
offset stands for "latest"; its batch reads nothing and only records where the end was. -2 stands for the earliest
record of a partition.

If the job names a group, the query's progress is committed to it: when Spark asks for the next batch, the previous one
is done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ottla.client.errors import ClientError
from ottla.spark.source.offsets import OffsetRange, Offsets, from_json, limited, split, to_json
from ottla.spark.source.offsets_lookup import Lookups
from ottla.spark.source.options import EARLIEST, LATEST, read_options
from ottla.spark.source.read import ReadRange, lost, read_range
from ottla.spark.source.schema import check_schema
from ottla.spark.user_errors import in_one_sentence
from ottla.spark.worker_pickle import WorkerPickle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("ottla.spark")
Json = dict[str, Any]


class StreamReader(WorkerPickle, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics in a streaming query."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        check_schema(schema)
        self._options = read_options(options, streaming=True)
        self._schema = schema
        self._lookups = Lookups(self._options)
        self._target: Offsets | None = None
        """The end offsets at the start of the query, for Trigger.AvailableNow."""
        self._newest: Offsets = {}
        self._committed: Offsets = {}
        self._last_batch_s = time.monotonic()

    # Offsets.

    @in_one_sentence
    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Returns where a new query starts; `{}` for the latest offsets, found when the first batch begins."""
        bound = self._options.start
        partitions = self._lookups.required_partitions()
        if bound.kind == "latest" or LATEST in bound.numbers.values():
            return {}
        if bound.kind == "earliest":
            return to_json(dict.fromkeys(partitions, EARLIEST))
        resolved = self._lookups.resolve(bound, "startingOffsets")
        if bound.kind == "offsets":  # "earliest" stays symbolic
            resolved |= {at: EARLIEST for at, offset in bound.numbers.items() if offset == EARLIEST}
        return to_json(resolved)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Returns `maxOffsetsPerTrigger` as a limit, or no limit."""
        limit = self._options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @in_one_sentence
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fixes the end of the query to the present end of the log."""
        self._target = self._lookups.latest(self._lookups.required_partitions())

    @in_one_sentence
    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802 - Spark's name
        """Returns where the next batch ends; `start` if there is too little to read yet."""
        if not start:
            return to_json(self._lookups.resolve(self._options.start, "startingOffsets"))
        begin = from_json(start)
        self._tell_group(begin)
        end = self._target if self._target is not None else self._lookups.latest(self._lookups.partitions())
        if not end:
            lost(f"{', '.join(start)} no longer exists: its unread records were deleted.", fail=self._fails)
            return start
        self._newest = end
        begin = self._begun(begin, end)
        if isinstance(limit, ReadAllAvailable):
            return to_json(end)
        if self._target is None and self._is_too_little(begin, end):
            return start
        self._last_batch_s = time.monotonic()
        return to_json(limited(begin, end, limit.max_rows) if isinstance(limit, ReadMaxRows) else end)

    def reportLatestOffset(self) -> Json | None:  # noqa: N802 - Spark's name
        """Returns the newest known end of the log, for Spark's progress report."""
        return to_json(self._newest) or None

    def commit(self, end: Json) -> None:
        """Does nothing: it is called one batch late, and not for the last batch. `latestOffset` commits to the group
        earlier."""

    def stop(self) -> None:
        """Disconnects from the brokers."""
        self._lookups.close()

    @property
    def _fails(self) -> bool:
        return self._options.fail_on_data_loss

    def _begun(self, begin: Offsets, end: Offsets) -> Offsets:
        """Resolves symbolic offsets and adds those of new partitions."""
        symbols = [at for at, offset in begin.items() if offset == EARLIEST and at in end]
        return {**begin, **self._lookups.earliest([*symbols, *(end.keys() - begin.keys())])}

    def _is_too_little(self, begin: Offsets, end: Offsets) -> bool:
        if self._options.min_offsets is None:
            return False
        waited_ms = (time.monotonic() - self._last_batch_s) * 1000
        waiting = sum(max(0, end[at] - begin[at]) for at in end)
        return waiting < self._options.min_offsets and waited_ms < self._options.max_delay_ms

    def _tell_group(self, done: Offsets) -> None:
        group = self._options.group
        known = {at: offset for at, offset in done.items() if offset >= 0}
        if group is None or not known or known == self._committed:
            return
        try:
            self._lookups.commit(group, known)
        except ClientError as failure:  # this is only for monitoring; the checkpoint is authoritative
            log.warning("Could not commit the query's offsets to group %s: %s", group, failure)
        self._committed = known

    # Tasks.

    @in_one_sentence
    def partitions(self, start: Json, end: Json) -> Sequence[ReadRange]:
        """Returns the offset ranges of a batch, split into tasks."""
        if not start:
            return []
        ranges = self._ranges(from_json(start), from_json(end))
        parts = split(ranges, self._options.min_partitions, self._options.max_records_per_partition)
        return [ReadRange(*each.at, each.start, each.end) for each in parts]

    @in_one_sentence
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one range on a worker."""
        if not isinstance(partition, ReadRange):
            return iter(())
        return read_range(self._options, self._schema, partition)

    def _ranges(self, begin: Offsets, end: Offsets) -> list[OffsetRange]:
        fail = self._fails
        there = self._lookups.partitions()
        if gone := sorted(map(str, (begin.keys() | end.keys()) - there)):
            lost(f"{', '.join(gone)} no longer exists: its unread records were deleted.", fail=fail)
        first = self._lookups.earliest(sorted(end.keys() & there))
        ranges = []
        for at in sorted(first):
            since, until = begin.get(at), end[at]
            if since is None and first[at] > 0:
                lost(f"{at} is new to the query, and its records before offset {first[at]} were deleted.", fail=fail)
            if since is None or since == EARLIEST:
                since = first[at]
            if until < since and until >= first[at]:
                lost(
                    f"The log of {at} ended at offset {until}, before offset {since}, which was already read.",
                    fail=fail,
                )
            elif since < first[at] and since < until:
                lost(f"Records of {at} from offset {since} to {min(first[at], until)} were deleted.", fail=fail)
            ranges.append(OffsetRange(at, max(since, first[at]), until))
        return ranges

    def __getstate__(self) -> dict[str, Any]:
        """Sends only what a task needs to a worker; connections stay on the driver."""
        return {"_options": self._options, "_schema": self._schema}


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the error of a reader that could not be created, as soon as Spark uses it.

    If `streamReader` itself raised, Spark 4.3 would hide the error behind an UnboundLocalError of its own.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    @in_one_sentence
    def _refuse(self, *_: Any) -> Any:
        raise self._error

    initialOffset = prepareForTriggerAvailableNow = getDefaultReadLimit = _refuse  # noqa: N815 - Spark's names
    latestOffset = _refuse  # type: ignore[assignment] # noqa: N815 - takes anything, returns nothing
    partitions = read = _refuse  # type: ignore[assignment] # takes anything, returns nothing

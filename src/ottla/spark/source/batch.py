"""The batch source, `spark.read.format("ottla")`: reads a range given by offsets or times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ottla.spark.source.filters import RowBounds, narrowed
from ottla.spark.source.offsets import OffsetRange, Offsets, split
from ottla.spark.source.offsets_lookup import Lookups
from ottla.spark.source.options import read_options
from ottla.spark.source.read import ReadRange, lost, read_range
from ottla.spark.source.schema import check_schema
from ottla.spark.user_errors import in_one_sentence
from ottla.spark.worker_pickle import WorkerPickle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType


class FilterPushdown:
    """The `pushFilters` of a reader, for sessions with and without `spark.sql.python.filterPushdown.enabled`.

    Without it, which is the default, Spark rejects a reader that overrides `pushFilters`, although it would not call
    the method. It compares `__func__`, so this object has that of Spark's base class.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.narrow(filters)


class BatchReader(WorkerPickle, DataSourceReader):
    """Reads topics in a batch query."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        check_schema(schema)
        self._options = read_options(options, streaming=False)
        self._schema = schema
        self._wanted = RowBounds()

    @property
    def pushFilters(self) -> Any:  # noqa: N802 - Spark's name
        """The object that takes Spark's filters, which limit the offsets to read."""
        return FilterPushdown(self)

    def narrow(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrows the ranges to read. Returns all filters, because Spark must check every row: ranges are coarser than
        filters."""
        self._wanted = narrowed(self._wanted, filters)
        return filters

    @in_one_sentence
    def partitions(self) -> Sequence[ReadRange]:
        """Returns the offset ranges to read, split into tasks."""
        lookups = Lookups(self._options)
        try:
            start = lookups.resolve(self._options.start, "startingOffsets")
            end = lookups.resolve(self._options.end, "endingOffsets")
            ranges = self._checked(lookups, start, end)
            ranges = self._filtered(lookups, ranges)
        finally:
            lookups.close()
        parts = split(ranges, self._options.min_partitions, self._options.max_records_per_partition)
        return [ReadRange(*each.at, each.start, each.end) for each in parts]

    @in_one_sentence
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one range on a worker."""
        if not isinstance(partition, ReadRange):
            return iter(())  # the partition that Spark makes up for a plan without tasks
        keep = self._wanted.keep if self._wanted.limits_rows else None
        return read_range(self._options, self._schema, partition, keep)

    def _checked(self, lookups: Lookups, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """Returns the ranges that exist. Reports records that retention has deleted, and offsets that do not exist
        yet."""
        fail = self._options.fail_on_data_loss
        both = sorted(start.keys() & end.keys())
        first, last = lookups.earliest(both), lookups.latest(both)
        ranges = []
        for at in both:
            since, until = start[at], end[at]
            if since < first[at] and until > since:
                lost(f"Records of {at} from offset {since} to {min(first[at], until)} were deleted.", fail=fail)
                since = first[at]
            if until > last[at]:
                lost(f"Records of {at} from offset {last[at]} to {until} do not exist.", fail=fail)
                until = last[at]
            if since > last[at]:
                lost(f"The log of {at} ends at offset {last[at]}, before the starting offset {since}.", fail=fail)
                continue
            ranges.append(OffsetRange(at, since, until))
        return ranges

    def _filtered(self, lookups: Lookups, ranges: list[OffsetRange]) -> list[OffsetRange]:
        wanted = self._wanted
        chosen = [each for each in ranges if wanted.includes(each.at)]
        if wanted.time_min_ms is not None:
            found = lookups.at_times({each.at: max(0, wanted.time_min_ms) for each in chosen})
            begins = {at: offset for at, offset in found.items() if offset is not None}
            chosen = [each._replace(start=max(each.start, begins[each.at])) for each in chosen if each.at in begins]
        if wanted.offset_min is not None:
            chosen = [each._replace(start=max(each.start, wanted.offset_min)) for each in chosen]
        if wanted.offset_end is not None:
            chosen = [each._replace(end=min(each.end, wanted.offset_end)) for each in chosen]
        return [each for each in chosen if each.size]

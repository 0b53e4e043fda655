"""Derives offset ranges from the filters of a batch query. Pure.

Only certain conclusions narrow a range. A record with a smaller offset may have a later time. So a start time gives a
start offset (all records before the first one that is late enough are too early), but an end time does not give an end
offset. Rows are compared again where they are read, and by Spark, to which every filter is returned.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ottla.client import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class RowBounds:
    """Half-open ranges, where None means no limit, and sets, where None means all."""

    offset_min: int | None = None
    offset_end: int | None = None
    time_min_us: int | None = None
    time_end_us: int | None = None
    partition_min: int | None = None
    partition_end: int | None = None
    topics: frozenset[str] | None = None

    def includes(self, at: TopicPartition) -> bool:
        """Returns whether the partition may have matching rows."""
        return (
            (self.topics is None or at.topic in self.topics)
            and (self.partition_min is None or at.partition >= self.partition_min)
            and (self.partition_end is None or at.partition < self.partition_end)
        )

    @property
    def time_min_ms(self) -> int | None:
        """Rounded up, because record times are whole milliseconds."""
        return None if self.time_min_us is None else -(-self.time_min_us // 1000)

    @property
    def limits_rows(self) -> bool:
        """Whether rows within the ranges must be compared."""
        return any(each is not None for each in (self.offset_min, self.offset_end, self.time_min_us, self.time_end_us))

    def keep(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows of a batch (`ottla.protocol.records.arrow.SCHEMA`) that may match."""
        import pyarrow as pa
        import pyarrow.compute as pc

        # Record times are whole milliseconds, so comparing them with a limit gives the same result if the limit is
        # rounded up.
        limits = (
            ("offset", self.offset_min, self.offset_end, 1),
            ("timestamp", self.time_min_us, self.time_end_us, 1000),
        )
        for name, least, end, unit in limits:
            if least is not None:
                limit = pa.scalar(-(-least // unit), pa.int64())
                rows = rows.filter(pc.greater_equal(rows.column(name).cast(pa.int64()), limit))
            if end is not None:
                limit = pa.scalar(-(-end // unit), pa.int64())
                rows = rows.filter(pc.less(rows.column(name).cast(pa.int64()), limit))
        return rows


def narrowed(wanted: RowBounds, filters: Iterable[Filter]) -> RowBounds:
    """Adds filters, all of which must hold."""
    for each in filters:
        wanted = _with(wanted, each)
    return wanted


def _with(wanted: RowBounds, condition: Filter) -> RowBounds:
    from pyspark.sql import datasource as ds

    path: tuple[str, ...] = getattr(condition, "attribute", ())
    value: Any = getattr(condition, "value", None)
    if value is None or len(path) != 1:
        return wanted
    column = path[0].lower()
    if column == "topic":
        names = {value} if isinstance(condition, ds.EqualTo) else set(value) if isinstance(condition, ds.In) else None
        if names is None:
            return wanted
        return replace(wanted, topics=frozenset(names if wanted.topics is None else names & wanted.topics))
    fields = {"offset": "offset", "partition": "partition", "timestamp": "time"}
    if column not in fields:
        return wanted
    limits = _limits(condition, column)
    if limits is None:
        return wanted
    suffix = "_us" if column == "timestamp" else ""
    return _cut(wanted, f"{fields[column]}_min{suffix}", f"{fields[column]}_end{suffix}", *limits)


def _cut(wanted: RowBounds, least_name: str, end_name: str, least: int | None, end: int | None) -> RowBounds:
    known_least, known_end = getattr(wanted, least_name), getattr(wanted, end_name)
    least = max((each for each in (least, known_least) if each is not None), default=None)
    end = min((each for each in (end, known_end) if each is not None), default=None)
    limits: dict[str, Any] = {least_name: least, end_name: end}
    return replace(wanted, **limits)


def _limits(condition: Filter, column: str) -> tuple[int | None, int | None] | None:
    """Returns the half-open range of integers that a comparison allows; None if it implies nothing usable."""
    from pyspark.sql import datasource as ds

    value: Any = getattr(condition, "value", None)
    given = value if isinstance(condition, ds.In) else (value,)
    numbers = [_number(each, column) for each in given]
    if not numbers or any(each is None for each in numbers):
        return None
    least, most = min(numbers), max(numbers)
    if isinstance(condition, ds.EqualTo | ds.In):
        return least, most + 1
    if isinstance(condition, ds.GreaterThan):
        return least + 1, None
    if isinstance(condition, ds.GreaterThanOrEqual):
        return least, None
    if isinstance(condition, ds.LessThan):
        return None, least
    if isinstance(condition, ds.LessThanOrEqual):
        return None, least + 1
    return None


def _number(value: Any, column: str) -> Any:
    """Returns an offset or partition unchanged, and a time in microseconds; None for anything else."""
    if column != "timestamp":
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None  # without a time zone the point in time is unknown
    return (value - _EPOCH) // _US

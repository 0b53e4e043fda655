"""Running queries: their progress, their end, and a restart if Spark was too slow for the first start."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

SLOW_START = "Python worker failed to connect back"
"""Spark gives the process of a source ten seconds to start, whatever the load of the machine. Nothing was read by then,
so the query is started again."""
STARTS_MAX = 5


@dataclass(frozen=True, slots=True)
class Progress:
    """One trigger of a query."""

    name: str
    batch: int
    rows: int
    rows_per_s: float
    duration_s: float
    lag: int | None
    """The number of offsets that are not read yet."""
    late: int
    """The number of rows that arrived after the watermark and were dropped."""
    bad: Mapping[str, int]
    """The number of records that could not be parsed, by stream."""


@dataclass(slots=True)
class RunningQuery:
    """A query. `start` starts or resumes it from its checkpoint."""

    name: str
    start: Callable[[], StreamingQuery]
    locks: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Released by `stop`."""
    query: StreamingQuery | None = None
    starts: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    """The number of records reported so far that could not be parsed, by stream."""
    _told: str = ""
    """The timestamp of the last reported progress. Batch numbers do not work, because triggers that find nothing have
    the number of the next batch."""

    def begin(self) -> None:
        """Starts the query."""
        self.query = self.start()
        self.starts += 1

    def poll(self) -> bool:
        """Returns whether the query runs. Raises the error with which it failed."""
        if self.query is None:
            return False
        if self.query.isActive:
            return True
        failure = self.query.exception()
        if failure is None:
            return False
        if SLOW_START in str(failure) and self.starts < STARTS_MAX:
            self.begin()
            return True
        raise failure

    def wait(self) -> None:
        """Waits until the query ends by itself."""
        while self.poll():
            if self.query is not None:
                with contextlib.suppress(Exception):  # poll raises it
                    self.query.awaitTermination()

    def stop(self) -> None:
        """Stops the query and releases its locks."""
        if self.query is not None:
            self.query.stop()
        self.locks.close()

    def news(self) -> list[Progress]:
        """Returns the progress that was not reported before."""
        recent: Sequence[Any] = self.query.recentProgress if self.query is not None else ()
        new = [progress_of(self.name, each) for each in recent if each.timestamp > self._told]
        if new:
            self._told = max(each.timestamp for each in recent)
        for each in new:
            self.bad.update(each.bad)
        return new


def progress_of(name: str, last: Any) -> Progress:
    """Converts a StreamingQueryProgress."""
    bad = {
        metric.removeprefix("bad "): int(row["bad"])
        for metric, row in (last.observedMetrics or {}).items()
        if metric.startswith("bad ")
    }
    return Progress(
        name=name,
        batch=last.batchId,
        rows=last.numInputRows,
        rows_per_s=last.processedRowsPerSecond or 0.0,
        duration_s=last.batchDuration / 1000,
        lag=lag_of([(each.endOffset, each.latestOffset) for each in last.sources]),
        late=sum(each.numRowsDroppedByWatermark for each in last.stateOperators),
        bad=bad,
    )


def lag_of(sources: list[tuple[str | None, str | None]]) -> int | None:
    """Returns the distance between the end of the batch and the ends of the logs; None if it is unknown."""
    behind = 0
    for end, latest in sources:
        try:
            read, there = json.loads(end or ""), json.loads(latest or "")
            for topic, offsets in there.items():
                behind += sum(max(0, each - max(0, read[topic][index])) for index, each in offsets.items())
        except (ValueError, TypeError, AttributeError, KeyError):
            return None
    return behind

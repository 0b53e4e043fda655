"""Queries that run: what they did last, how they end, and another start where Spark was too slow for the first."""

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
"""Spark gives a source's process ten seconds to start, whatever the machine does. Nothing was read: it starts again."""
STARTS_MAX = 5


@dataclass(frozen=True, slots=True)
class Progress:
    name: str
    batch: int
    rows: int
    rows_per_s: float
    duration_s: float
    lag: int | None
    """Offsets that are not read yet."""
    late: int
    """Rows that came after their watermark, and were left out."""
    bad: Mapping[str, int]
    """Records that did not parse, by stream."""


@dataclass(slots=True)
class Running:
    """`start` begins the query, or goes on with it: its checkpoint knows where."""

    name: str
    start: Callable[[], StreamingQuery]
    locks: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Closed when it is stopped."""
    query: StreamingQuery | None = None
    starts: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    """Records that did not parse, by stream, as far as they were told."""
    _told: str = ""
    """The time of the last news: triggers that find nothing have the number of the batch that comes next."""

    def begin(self) -> None:
        self.query = self.start()
        self.starts += 1

    def poll(self) -> bool:
        """Whether it runs. Raises what it failed with."""
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
        """Until it ends by itself."""
        while self.poll():
            if self.query is not None:
                with contextlib.suppress(Exception):  # poll tells what it was
                    self.query.awaitTermination()

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()
        self.locks.close()

    def news(self) -> list[Progress]:
        """The batches that were not told before."""
        recent: Sequence[Any] = self.query.recentProgress if self.query is not None else ()
        new = [progress_of(self.name, each) for each in recent if each.timestamp > self._told]
        if new:
            self._told = max(each.timestamp for each in recent)
        for each in new:
            self.bad.update(each.bad)
        return new


def progress_of(name: str, last: Any) -> Progress:
    """Of a StreamingQueryProgress."""
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
    """How far the ends of the logs are from where the batch ended; None if that is not known."""
    behind = 0
    for end, latest in sources:
        try:
            read, there = json.loads(end or ""), json.loads(latest or "")
            for topic, offsets in there.items():
                behind += sum(max(0, each - max(0, read[topic][index])) for index, each in offsets.items())
        except (ValueError, TypeError, AttributeError, KeyError):
            return None
    return behind

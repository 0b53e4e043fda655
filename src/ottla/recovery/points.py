"""Recovery points: how far to replay."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from ottla.recovery.appliers import Position
from ottla.recovery.logs import Columns


@dataclass(frozen=True, slots=True)
class Point:
    """A recovery point: an offset, a time or a transaction. Without any of them, the end of the log.

    Example:

        Point(offset=1200)
        Point(time_ms=1_760_000_000_000)
        Point(transaction=42)
    """

    offset: int | None = None
    """Replay the records before this offset."""
    time_ms: int | None = None
    """Replay the records before the first one with a later timestamp. Milliseconds since 1970."""
    transaction: int | None = None
    """Replay up to and including the commit of this transaction."""

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.offset, self.time_ms, self.transaction)) > 1:
            raise ValueError("a point must be only one of offset, time and transaction")
        if self.transaction is not None and self.transaction < 1:
            raise ValueError(f"a transaction id must be at least 1: {self.transaction}")

    def allows(self, position: Position) -> bool:
        """Returns whether a state at this position contains nothing after the point."""
        if self.offset is not None:
            return position.next_offset <= self.offset
        if self.time_ms is not None:
            return position.timestamp_ms_max <= self.time_ms
        # A transaction that commits later may have a lower id. If the state has a higher id, it may be past the point.
        return self.transaction is None or position.transaction_max < self.transaction

    def cut(self, columns: Columns) -> tuple[Columns, bool]:
        """Returns the columns without the entries after the point, and whether the point lies in these columns."""
        if not columns.offsets:
            return columns, False
        if self.offset is not None and columns.offsets[-1] >= self.offset - 1:
            return columns.before(bisect_left(columns.offsets, self.offset)), True
        if self.time_ms is not None and max(columns.timestamps_ms) > self.time_ms:
            first_later = next(index for index, each in enumerate(columns.timestamps_ms) if each > self.time_ms)
            return columns.before(first_later), True
        return columns, False

    def __str__(self) -> str:
        if self.offset is not None:
            return f"offset {self.offset}"
        if self.time_ms is not None:
            return f"time {self.time_ms} ms"
        return "the end" if self.transaction is None else f"transaction {self.transaction}"


END = Point()

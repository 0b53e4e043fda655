"""Who waits for a batch: one future for each record, or one for a whole table.

A batch can be cut in two on its way (it was too large), so a delivery can be cut in two as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

UNKNOWN_OFFSET = -1
"""The broker took the records but did not say where: acks=0, or a duplicate of long ago."""


class RecordMetadata(NamedTuple):
    """Where a record is in the log."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class TablePart(NamedTuple):
    """Where consecutive rows of a table are in the log."""

    partition: int
    base_offset: int
    record_count: int


class Delivery(Protocol):
    """Hears once how its records fared."""

    @property
    def count(self) -> int: ...

    def delivered(self, topic: str, partition: int, base_offset: int, append_time_ms: int) -> None:
        """`append_time_ms` is -1 unless the broker stamps records with its own clock."""
        ...

    def failed(self, reason: Exception) -> None: ...

    def cut(self, at: int) -> tuple[Delivery, Delivery]: ...


class RecordsDelivery:
    """A future for each record, in order."""

    __slots__ = ("futures", "timestamps")

    def __init__(self, futures: Sequence[asyncio.Future[RecordMetadata]], timestamps: Sequence[int]) -> None:
        self.futures = futures
        self.timestamps = timestamps

    @property
    def count(self) -> int:
        return len(self.futures)

    def delivered(self, topic: str, partition: int, base_offset: int, append_time_ms: int) -> None:
        step = 0 if base_offset == UNKNOWN_OFFSET else 1
        offset = base_offset
        for future, timestamp_ms in zip(self.futures, self.timestamps, strict=True):
            if not future.done():
                stamp_ms = timestamp_ms if append_time_ms < 0 else append_time_ms
                future.set_result(RecordMetadata(topic, partition, offset, stamp_ms))
            offset += step

    def failed(self, reason: Exception) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(reason)
                future.exception()  # `flush` and `close` raise it too, so a future that nobody looks at is no secret

    def cut(self, at: int) -> tuple[Delivery, Delivery]:
        return (
            RecordsDelivery(self.futures[:at], self.timestamps[:at]),
            RecordsDelivery(self.futures[at:], self.timestamps[at:]),
        )


class TableDelivery:
    """Gathers the parts of one table; `done` is set when the last one has arrived, or at the first failure."""

    def __init__(self) -> None:
        self.done: asyncio.Future[list[TablePart]] = asyncio.get_running_loop().create_future()
        self._parts: dict[tuple[int, ...], TablePart] = {}
        self._outstanding = 0
        self._all_handed_over = False

    def part(self, order: int, count: int) -> TablePartDelivery:
        self._outstanding += 1
        return TablePartDelivery(self, (order,), count)

    def all_handed_over(self) -> None:
        """No further parts will come."""
        self._all_handed_over = True
        self._finish_if_complete()

    def one_more_part(self) -> None:
        self._outstanding += 1

    def arrived(self, order: tuple[int, ...], part: TablePart) -> None:
        self._parts[order] = part
        self._outstanding -= 1
        self._finish_if_complete()

    def failed(self, reason: Exception) -> None:
        self._outstanding -= 1
        if not self.done.done():
            self.done.set_exception(reason)
            self.done.exception()

    def _finish_if_complete(self) -> None:
        if self._all_handed_over and self._outstanding == 0 and not self.done.done():
            self.done.set_result(merge_parts([part for _, part in sorted(self._parts.items())]))


def merge_parts(parts: Sequence[TablePart]) -> list[TablePart]:
    """Joins parts that follow one another in the log."""
    merged: list[TablePart] = []
    for part in parts:
        last = merged[-1] if merged else None
        if last is not None and last.partition == part.partition and _follows(last, part):
            merged[-1] = last._replace(record_count=last.record_count + part.record_count)
        else:
            merged.append(part)
    return merged


def _follows(last: TablePart, part: TablePart) -> bool:
    if part.base_offset == UNKNOWN_OFFSET:
        return last.base_offset == UNKNOWN_OFFSET
    return last.base_offset != UNKNOWN_OFFSET and last.base_offset + last.record_count == part.base_offset


class TablePartDelivery:
    """One batch of a table. `order` sorts the parts; the halves of a cut come one after another in its place."""

    __slots__ = ("_order", "_table", "count")

    def __init__(self, table: TableDelivery, order: tuple[int, ...], count: int) -> None:
        self._table = table
        self._order = order
        self.count = count

    def delivered(self, topic: str, partition: int, base_offset: int, append_time_ms: int) -> None:
        self._table.arrived(self._order, TablePart(partition, base_offset, self.count))

    def failed(self, reason: Exception) -> None:
        self._table.failed(reason)

    def cut(self, at: int) -> tuple[Delivery, Delivery]:
        self._table.one_more_part()
        return (
            TablePartDelivery(self._table, (*self._order, 0), at),
            TablePartDelivery(self._table, (*self._order, 1), self.count - at),
        )

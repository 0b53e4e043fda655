"""Completes the futures of a batch: one for each record, or one for a whole table.

A batch that is too large for the broker is split in two, so a delivery can be split as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

UNKNOWN_OFFSET = -1
"""The broker accepted the records but did not return an offset: acks=0, or an old duplicate."""


class RecordMetadata(NamedTuple):
    """The position of a record in the log."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class TablePart(NamedTuple):
    """The position of consecutive table rows in the log."""

    partition: int
    base_offset: int
    record_count: int


class Delivery(Protocol):
    """The receiver of a batch's outcome: either `delivered` or `failed` is called, once, unless it was cut."""

    @property
    def count(self) -> int:
        """The number of records."""
        ...

    def delivered(self, topic: str, partition: int, base_offset: int, append_time_ms: int) -> None:
        """Reports success. `append_time_ms` is -1 unless the broker sets timestamps with its own clock."""
        ...

    def failed(self, reason: Exception) -> None:
        """Reports failure."""
        ...

    def cut(self, at: int) -> tuple[Delivery, Delivery]:
        """Splits the delivery after `at` records. Its two parts replace it."""
        ...


class RecordsDelivery:
    """Has a future for each record, in order."""

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
                future.exception()  # marks it as retrieved; `flush` and `close` raise it too

    def cut(self, at: int) -> tuple[Delivery, Delivery]:
        return (
            RecordsDelivery(self.futures[:at], self.timestamps[:at]),
            RecordsDelivery(self.futures[at:], self.timestamps[at:]),
        )


class TableDelivery:
    """Collects the parts of one table. `done` is set when the last part arrives, or at the first failure."""

    def __init__(self) -> None:
        self.done: asyncio.Future[list[TablePart]] = asyncio.get_running_loop().create_future()
        self._parts: dict[tuple[int, ...], TablePart] = {}
        self._outstanding = 0
        self._all_handed_over = False

    def part(self, order: int, count: int) -> TablePartDelivery:
        """Creates the delivery of one batch. `order` is its place in the table."""
        self._outstanding += 1
        return TablePartDelivery(self, (order,), count)

    def all_handed_over(self) -> None:
        """Marks the last part as handed over."""
        self._all_handed_over = True
        self._finish_if_complete()

    def one_more_part(self) -> None:
        """Counts one more outstanding part, after a split."""
        self._outstanding += 1

    def arrived(self, order: tuple[int, ...], part: TablePart) -> None:
        """Records a delivered part."""
        self._parts[order] = part
        self._outstanding -= 1
        self._finish_if_complete()

    def failed(self, reason: Exception) -> None:
        """Records a failed part."""
        self._outstanding -= 1
        if not self.done.done():
            self.done.set_exception(reason)
            self.done.exception()

    def _finish_if_complete(self) -> None:
        if self._all_handed_over and self._outstanding == 0 and not self.done.done():
            self.done.set_result(merge_parts([part for _, part in sorted(self._parts.items())]))


def merge_parts(parts: Sequence[TablePart]) -> list[TablePart]:
    """Merges parts that are adjacent in the log."""
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
    """The delivery of one batch of a table. `order` sorts the parts; the halves of a split keep its place."""

    __slots__ = ("_order", "_table", "count")

    def __init__(self, table: TableDelivery, order: tuple[int, ...], count: int) -> None:
        self._table = table
        self._order = order
        self.count = count

    def delivered(self, topic: str, partition: int, base_offset: int, append_time_ms: int) -> None:
        """Records the position of this part. The table's future completes with its last part."""
        self._table.arrived(self._order, TablePart(partition, base_offset, self.count))

    def failed(self, reason: Exception) -> None:
        """Fails the future of the whole table, even if other parts were written."""
        self._table.failed(reason)

    def cut(self, at: int) -> tuple[Delivery, Delivery]:
        """Splits the part after `at` rows; the table then waits for one part more."""
        self._table.one_more_part()
        return (
            TablePartDelivery(self._table, (*self._order, 0), at),
            TablePartDelivery(self._table, (*self._order, 1), self.count - at),
        )

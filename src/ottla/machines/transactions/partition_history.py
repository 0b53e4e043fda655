"""The undo log of a table: for each change, its offset and the value before it. Used when the log is truncated.

Only the start and the end of a transaction change the table, so the history is small. It is discarded up to the offset
below which the log is never truncated and never asks for a snapshot.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Change(NamedTuple, Generic[T]):
    """One change of a producer's entry; `before` is None if there was no entry."""

    offset: int
    producer_id: int
    before: T | None


class History(Generic[T]):
    """The changes of one table, in the order of the log."""

    __slots__ = ("_changes", "from_offset")

    def __init__(self, from_offset: int = 0) -> None:
        self._changes: list[Change[T]] = []
        self.from_offset = from_offset
        """All changes from this offset on are known."""

    def __len__(self) -> int:
        return len(self._changes)

    def note(self, offset: int, producer_id: int, before: T | None) -> None:
        """Notes a change at this offset and the value before it; None if there was none."""
        self._changes.append(Change(offset, producer_id, before))

    def since(self, offset: int) -> list[Change[T]]:
        """Returns the changes from this offset on, latest first: the order in which to undo them."""
        return self._changes[self._place(offset) :][::-1]

    def truncate_to(self, offset: int) -> None:
        """Drops the changes at or above this offset, after they were undone."""
        del self._changes[self._place(offset) :]

    def forget_below(self, offset: int) -> None:
        """Drops the changes below this offset, which can no longer be truncated."""
        del self._changes[: self._place(offset)]
        self.from_offset = max(self.from_offset, offset)

    def _place(self, offset: int) -> int:
        return bisect_left(self._changes, offset, key=lambda change: change.offset)

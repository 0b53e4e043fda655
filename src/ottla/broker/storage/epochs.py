"""The start offset of each leader epoch in one log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

NONE = (-1, -1)


class LeaderEpochs:
    """Maps leader epochs to their start offsets."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start_offset in entries:
            self.note(epoch, start_offset)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int:
        """The newest leader epoch; -1 if the log has none."""
        return self._epochs[-1] if self._epochs else -1

    def note(self, epoch: int, base_offset: int) -> None:
        """Records that a batch of this epoch was appended. Only the first batch of an epoch matters."""
        if not self._epochs or epoch > self._epochs[-1]:
            self._epochs.append(epoch)
            self._starts.append(base_offset)

    def epoch_at(self, offset: int) -> int:
        """Returns the epoch of an offset; -1 if it is unknown."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else -1

    def copy(self) -> LeaderEpochs:
        """Returns an independent copy."""
        return LeaderEpochs(self)

    def start_of(self, epoch: int) -> int:
        """Returns the start offset of an epoch that this log has."""
        return self._starts[self._epochs.index(epoch)]

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Returns the largest epoch that is not above the given one, and its end offset: where a reader of that epoch
        may resume.

        An epoch before the log's first one ends where the first one begins. Returns (-1, -1) for an epoch that has not
        started yet.
        """
        if epoch < 0 or epoch > self.latest:
            return NONE
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        index = bisect_right(self._epochs, epoch)
        return (self._epochs[index - 1] if index else epoch), self._starts[index]

    def truncate_from(self, end_offset: int) -> None:
        """Drops the epochs that start at or above the log's new end."""
        while self._starts and self._starts[-1] >= end_offset:
            self._starts.pop()
            self._epochs.pop()

    def truncate_before(self, start_offset: int) -> None:
        """Drops the epochs that lie entirely below the log's start. An epoch that spans the start now begins there."""
        index = bisect_right(self._starts, start_offset) - 1
        if index > 0:
            del self._epochs[:index], self._starts[:index]
        if self._starts and self._starts[0] < start_offset:
            self._starts[0] = start_offset

"""A produce that would begin a transaction in a partition asks the coordinator first (KIP-890).

Otherwise a batch that comes late, after its transaction has ended, would begin one that nobody ends: the last stable
offset would stand still for ever. The question takes time, in which a marker may come. So whoever asks gets a guard,
shows it when it appends, and a marker or a first batch takes the guard away.

All of it is forgotten when leadership changes: the produce is retried, and asks again.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.model.errors import ErrorCode

NO_GUARD = 0


class Verification(NamedTuple):
    guard: int
    epoch: int
    lowest_sequence: int
    """Of the batches that asked: a later batch must not overtake one that has to ask again."""
    since_ms: int


class Verifications:
    __slots__ = ("_by_producer", "_last_guard")

    def __init__(self) -> None:
        self._by_producer: dict[int, Verification] = {}
        self._last_guard = NO_GUARD

    def __len__(self) -> int:
        return len(self._by_producer)

    def get(self, producer_id: int) -> Verification | None:
        return self._by_producer.get(producer_id)

    def begin(self, producer_id: int, epoch: int, first_sequence: int, now_ms: int) -> int | ErrorCode:
        """A guard, the same for all batches of one epoch that ask at the same time."""
        known = self._by_producer.get(producer_id)
        if known is not None and epoch < known.epoch:
            return ErrorCode.invalid_producer_epoch
        if known is not None and epoch == known.epoch:
            lowest = min(known.lowest_sequence, first_sequence)
            self._by_producer[producer_id] = known._replace(lowest_sequence=lowest)
            return known.guard
        self._last_guard += 1
        self._by_producer[producer_id] = Verification(self._last_guard, epoch, first_sequence, now_ms)
        return self._last_guard

    def end(self, producer_id: int) -> None:
        self._by_producer.pop(producer_id, None)

    def clear(self) -> None:
        """Guards are never used again: whoever still has one must not pass with it."""
        self._by_producer.clear()

    def expire(self, since_before_ms: int) -> None:
        """Those that never ended in an append or a marker."""
        for producer_id, known in list(self._by_producer.items()):
            if known.since_ms < since_before_ms:
                del self._by_producer[producer_id]

"""Verification of a produce that would start a transaction in a partition: the leader asks the coordinator first
(KIP-890).

Otherwise a batch that arrives after its transaction has ended would start a transaction that nobody ends, and the last
stable offset would never advance again. A marker may arrive while the question is in flight. Each verification
therefore has a guard, which the append presents; a marker or a first batch invalidates it.

All guards are dropped when leadership changes: the produce is retried and verified again.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.protocol.model.errors import ErrorCode

NO_GUARD = 0


class Verification(NamedTuple):
    """A verification in progress."""

    guard: int
    epoch: int
    lowest_sequence: int
    """Lowest sequence number of the batches being verified. A later batch must not overtake one that has to
    ask again."""
    since_ms: int


class Verifications:
    """The verifications in progress in one partition, at most one for each producer."""

    __slots__ = ("_by_producer", "_last_guard")

    def __init__(self) -> None:
        self._by_producer: dict[int, Verification] = {}
        self._last_guard = NO_GUARD

    def __len__(self) -> int:
        return len(self._by_producer)

    def get(self, producer_id: int) -> Verification | None:
        """Returns the verification in progress for a producer, or None."""
        return self._by_producer.get(producer_id)

    def begin(self, producer_id: int, epoch: int, first_sequence: int, now_ms: int) -> int | ErrorCode:
        """Starts or joins a verification and returns its guard. Concurrent batches of one epoch share a guard."""
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
        """Invalidates the producer's guard."""
        self._by_producer.pop(producer_id, None)

    def clear(self) -> None:
        """Invalidates all guards. Their numbers are never reused, so an outdated guard never passes."""
        self._by_producer.clear()

    def expire(self, since_before_ms: int) -> None:
        """Drops verifications that never ended in an append or a marker."""
        for producer_id, known in list(self._by_producer.items()):
            if known.since_ms < since_before_ms:
                del self._by_producer[producer_id]

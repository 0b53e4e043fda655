"""Producers whose first batch was refused, though they go on: what follows must not be taken before it.

A log that has never heard of a producer lets it begin anywhere, as Kafka does: its batches may have been removed. A
client has several batches on their way. If the first is refused because too few replicas are in sync, and the second
comes when there are enough again, the second would be taken; and librdkafka takes everything before an acknowledged
batch for acknowledged. A producer never leaves out a batch that was refused, so whoever sends a later one of the same
epoch is told that it is out of order, and sends both again.
"""

from __future__ import annotations

from ottla.records.batch import HEADER_BYTES, MAGIC, read_header

PRODUCERS_MAX = 1000


class RefusedBeginnings:
    """Of one partition, on one broker, in memory."""

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: dict[int, tuple[int, int]] = {}
        """Epoch and sequence of the earliest batch that was refused, by producer, in the order of coming."""

    def __bool__(self) -> bool:
        return bool(self._first)

    def note(self, records: memoryview | None) -> None:
        """A batch that was not taken."""
        if records is None or len(records) < HEADER_BYTES:
            return
        header = read_header(records)
        if header.magic != MAGIC or header.producer_id < 0:
            return
        refused = header.producer_epoch, header.base_sequence
        known = self._first.pop(header.producer_id, refused)
        # The earliest of the latest epoch.
        kept = refused if refused[0] > known[0] else known if known[0] > refused[0] else min(refused, known)
        self._first[header.producer_id] = kept
        if len(self._first) > PRODUCERS_MAX:
            del self._first[next(iter(self._first))]

    def expected(self, producer_id: int, epoch: int, sequence: int) -> int | None:
        """The sequence that has to come first. None: this batch is in order, and the refusal is forgotten."""
        known = self._first.get(producer_id)
        if known is None:
            return None
        if epoch == known[0] and sequence > known[1]:
            return known[1]
        del self._first[producer_id]
        return None

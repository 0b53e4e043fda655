"""What one log knows of each idempotent producer, and what that says of its next batch.

A producer numbers its records per partition. The log keeps the last five batches of each producer (a client has at
most five in flight), so that

* the batch that continues the sequence is accepted,
* a batch that is among the five is a retry: it is answered with the offset of the first time,
* anything else would leave a gap or double a record: it is refused.

A marker of a transaction may raise the epoch. It is kept like a batch, with the sequence before the first one.

`judge` only looks; `record` is called after the append, and again, in the same order, when a log is read back after
a restart. So running and recovering are one path.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ottla.model.writer_ids import WRITER_IDS_FROM, epoch_of

BATCHES_KEPT = 5
SEQUENCE_MAX = 0x7FFFFFFF
NO_SEQUENCE = -1
WRITERS_KEPT = 32
"""Of the append stream: the latest fences. One that is not kept is not known, and an unknown writer is refused."""


class ProducerBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int
    end_offset: int
    timestamp_ms: int


@dataclass(slots=True)
class ProducerEntry:
    producer_id: int
    epoch: int
    last_timestamp_ms: int
    """When the log last heard of it: what expiry counts from."""
    batches: list[ProducerBatch] = field(default_factory=list)
    """Oldest first, at most BATCHES_KEPT."""
    previous: ProducerEntry | None = field(default=None, compare=False)
    """As it was before its epoch was raised, if that is still known."""
    is_whole: bool = field(default=False, compare=False)
    """The batches are all of this epoch, and `previous` is all that was known before: how things were at an earlier
    offset can be told."""


class Accepted(NamedTuple):
    pass


class Duplicate(NamedTuple):
    batch: ProducerBatch


class OutOfOrder(NamedTuple):
    expected_sequence: int


class StaleEpoch(NamedTuple):
    current_epoch: int


Verdict = Accepted | Duplicate | OutOfOrder | StaleEpoch
ACCEPTED = Accepted()


def next_sequence(sequence: int) -> int:
    return 0 if sequence == SEQUENCE_MAX else sequence + 1


class ProducerStates:
    """The producers of one log."""

    __slots__ = ("_entries", "writer_epoch")

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self._entries = {entry.producer_id: entry for entry in entries}
        self.writer_epoch = max(map(epoch_of, self._entries), default=0)
        """Of the log's single writer, by the append stream; 0 if it has none."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ProducerEntry]:
        return iter(self._entries.values())

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def judge(self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int) -> Verdict:
        """What to do with a batch. A producer that the log has never heard of, or has expired, may begin anywhere:
        its earlier batches may have been removed by retention."""
        entry = self._entries.get(producer_id)
        if entry is None:
            return ACCEPTED
        if epoch < entry.epoch:
            return StaleEpoch(entry.epoch)
        if epoch > entry.epoch:
            return ACCEPTED if first_sequence == 0 else OutOfOrder(0)
        for batch in reversed(entry.batches):
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return Duplicate(batch)
        if not entry.batches:
            return ACCEPTED
        expected = next_sequence(entry.batches[-1].last_sequence)
        return ACCEPTED if first_sequence == expected else OutOfOrder(expected)

    def record(self, producer_id: int, epoch: int, batch: ProducerBatch) -> None:
        """The batch is in the log. The caller has judged it, or reads it back from the log."""
        entry = self._entries.get(producer_id)
        if entry is None or epoch > entry.epoch:
            self._begin_epoch(entry, producer_id, epoch, batch)
            return
        entry.last_timestamp_ms = max(entry.last_timestamp_ms, batch.timestamp_ms)
        entry.batches.append(batch)
        if len(entry.batches) > BATCHES_KEPT:
            del entry.batches[0]
            entry.previous, entry.is_whole = None, False

    def record_unnumbered(self, producer_id: int, epoch: int, offset: int, end_offset: int, timestamp_ms: int) -> None:
        """A marker, or a coordinator's batch, is in the log. Neither counts in the sequence; either may be the first
        that is heard of an epoch, whose sequence then begins at zero."""
        entry = self._entries.get(producer_id)
        if entry is None or epoch > entry.epoch:
            batch = ProducerBatch(NO_SEQUENCE, NO_SEQUENCE, offset, end_offset, timestamp_ms)
            self._begin_epoch(entry, producer_id, epoch, batch)
        else:
            entry.last_timestamp_ms = max(entry.last_timestamp_ms, timestamp_ms)

    def _begin_epoch(self, before: ProducerEntry | None, producer_id: int, epoch: int, batch: ProducerBatch) -> None:
        if before is not None and before.previous is not None:
            before = replace(before, previous=None, is_whole=False)
        self._entries[producer_id] = ProducerEntry(producer_id, epoch, batch.timestamp_ms, [batch], before, True)
        if producer_id >= WRITER_IDS_FROM:
            self._note_writer(producer_id)

    def _note_writer(self, producer_id: int) -> None:
        self.writer_epoch = max(self.writer_epoch, epoch_of(producer_id))
        writers = sorted(known for known in self._entries if known >= WRITER_IDS_FROM)
        for outdated in writers[:-WRITERS_KEPT]:
            del self._entries[outdated]

    def expire(self, heard_before_ms: int, kept: Container[int] = ()) -> list[int]:
        """Forgets producers that have been silent since before then, but for those that are to be kept; returns their
        ids."""
        silent = [
            entry.producer_id
            for entry in self
            if entry.last_timestamp_ms < heard_before_ms
            and entry.producer_id not in kept
            and entry.producer_id < WRITER_IDS_FROM  # a fence holds until the next one
        ]
        for producer_id in silent:
            del self._entries[producer_id]
        return silent

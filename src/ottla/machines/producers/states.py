"""The state of each idempotent producer in one log, and the verdict on its next batch.

A producer numbers its records per partition. The log keeps the last five batches of each producer, because a client
has at most five in flight:

- A batch that continues the sequence is accepted.
- A batch among the last five is a retry; the reply carries the offset of the original.
- Any other batch would leave a gap or duplicate a record, so it is rejected.

A transaction marker may raise the epoch. The marker is kept like a batch, with the sequence number before the first.

`judge` does not change state. `record` is called after the append, and again, in the same order, when a log is replayed
after a restart. Normal operation and recovery therefore share one code path.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ottla.protocol.model.writer_ids import WRITER_IDS_FROM, epoch_of

BATCHES_KEPT = 5
SEQUENCE_MAX = 0x7FFFFFFF
NO_SEQUENCE = -1
WRITERS_KEPT = 32
"""Number of append-stream writers that are kept, newest fences first. A writer that is no longer kept is unknown, and
an unknown writer is rejected."""


class ProducerBatch(NamedTuple):
    """A batch of a producer in the log."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    end_offset: int
    timestamp_ms: int


@dataclass(slots=True)
class ProducerEntry:
    """The state of one producer."""

    producer_id: int
    epoch: int
    last_timestamp_ms: int
    """Time of the producer's last batch. Expiration counts from here."""
    batches: list[ProducerBatch] = field(default_factory=list)
    """Recent batches, oldest first; at most BATCHES_KEPT."""
    previous: ProducerEntry | None = field(default=None, compare=False)
    """The entry before the epoch was raised, if it is still known."""
    is_whole: bool = field(default=False, compare=False)
    """True if `batches` holds every batch of this epoch and `previous` everything known before it, so that the state at
    an earlier offset can be reconstructed."""


class Accepted(NamedTuple):
    pass


class Duplicate(NamedTuple):
    """A retry of a batch that is already in the log."""

    batch: ProducerBatch


class OutOfOrder(NamedTuple):
    """The batch does not continue the sequence."""

    expected_sequence: int


class StaleEpoch(NamedTuple):
    """A newer epoch of the producer has fenced this one."""

    current_epoch: int


Verdict = Accepted | Duplicate | OutOfOrder | StaleEpoch
ACCEPTED = Accepted()


def next_sequence(sequence: int) -> int:
    """Returns the sequence number that follows; sequence numbers wrap to 0 after SEQUENCE_MAX."""
    return 0 if sequence == SEQUENCE_MAX else sequence + 1


class ProducerStates:
    """The idempotent producers of one log."""

    __slots__ = ("_entries", "writer_epoch")

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self._entries = {entry.producer_id: entry for entry in entries}
        self.writer_epoch = max(map(epoch_of, self._entries), default=0)
        """Epoch of the log's single append-stream writer; 0 if it has none."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ProducerEntry]:
        return iter(self._entries.values())

    def get(self, producer_id: int) -> ProducerEntry | None:
        """Returns the state of a producer, or None if it is unknown or expired."""
        return self._entries.get(producer_id)

    def judge(self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int) -> Verdict:
        """Decides what to do with a batch. An unknown or expired producer may start at any sequence number, because
        retention may have removed its earlier batches."""
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
        """Records a batch that is in the log. The caller has judged it, or is replaying the log."""
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
        """Records a transaction marker or a coordinator's batch. Neither counts in the sequence. Either may be the
        first batch of an epoch, whose sequence then starts at zero."""
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
        """Forgets producers whose last batch is older than `heard_before_ms`, except those in `kept`. Returns the ids
        of the forgotten producers."""
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

"""The transactions in one partition: which are open, which markers end them, and up to where a reader may trust.

A leader judges a batch or a marker before it appends it, and records it after. A follower, and whoever reads a log
back, only records. So leading, following and recovering are one path, and the table is a function of the log.

* A transaction is open from its first batch to its marker. A marker of a lower coordinator epoch is refused, and so is
  one of a transaction that is over; one that is there already is found, if its epoch tells, and not written again.
* The last stable offset is where the first transaction begins whose end is not committed: one that is open, or whose
  marker is not below the watermark. A truncation that takes a marker away opens the transaction again (SAFETY 24).
* Sequence numbers and retries of batches are `machines.producers`'. A retry that is found there is not judged here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from ottla.machines.transactions.aborted_index import AbortedIndex, AbortedTransaction
from ottla.machines.transactions.partition_history import History
from ottla.machines.transactions.records import EPOCH_BUMPS_SINCE_VERSION
from ottla.machines.transactions.verification import NO_GUARD, Verifications
from ottla.model.errors import ErrorCode, Refused

NOT_OPEN = -1
NO_OFFSET = -1
NO_SEQUENCE = -1


class TransactionalProducer(NamedTuple):
    """What one producer has done here by its transactions."""

    epoch: int
    first_offset: int = NOT_OPEN
    """Of its open transaction."""
    coordinator_epoch: int = -1
    marker_offset: int = NO_OFFSET
    """Of its last marker."""
    changed_ms: int = -1
    """When its transaction began here or, if none is open, ended."""

    @property
    def is_open(self) -> bool:
        return self.first_offset != NOT_OPEN


class OpenTransaction(NamedTuple):
    producer_id: int
    producer_epoch: int
    first_offset: int
    started_ms: int


class Ended(NamedTuple):
    """A transaction whose marker is not known to be committed."""

    first_offset: int
    marker_offset: int


class Marker(NamedTuple):
    """What a coordinator asks to be written."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int = 0


class ToAppend(NamedTuple):
    pass


class AlreadyMarked(NamedTuple):
    """By an earlier attempt. The answer waits until that one is committed (SAFETY 21)."""

    offset: int


TO_APPEND = ToAppend()


class PartitionTransactions:
    def __init__(
        self,
        producers: Iterable[tuple[int, TransactionalProducer]] = (),
        ended: Iterable[Ended] = (),
        from_offset: int = 0,
    ) -> None:
        self._producers = dict(producers)
        self._open: dict[int, int] = {}
        """First offsets by producer id, in the order of the log."""
        self._ended = deque(ended)
        """In the order of their markers."""
        self._history: History[TransactionalProducer] = History(from_offset)
        self._high_watermark = 0
        self.aborted = AbortedIndex()
        self.verifications = Verifications()
        self._sort_open()

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, TransactionalProducer]]:
        return iter(self._producers.items())

    def __eq__(self, other: object) -> bool:
        """What the log says; not what is only known while it runs."""
        return isinstance(other, PartitionTransactions) and (
            self._producers,
            self._open,
            self.aborted,
        ) == (other._producers, other._open, other.aborted)

    __hash__ = None  # type: ignore[assignment]  # it changes

    # -- looking ---------------------------------------------------------------------------------------------------

    def get(self, producer_id: int) -> TransactionalProducer | None:
        return self._producers.get(producer_id)

    @property
    def ended(self) -> tuple[Ended, ...]:
        return tuple(self._ended)

    def open_transactions(self) -> list[OpenTransaction]:
        """The oldest first."""
        found = ((producer_id, self._producers[producer_id]) for producer_id in self._open)
        return [OpenTransaction(name, each.epoch, each.first_offset, each.changed_ms) for name, each in found]

    @property
    def is_quiet(self) -> bool:
        """Nothing is open, and every marker is committed: all below the watermark is stable."""
        return not self._open and not self._ended

    @property
    def history_length(self) -> int:
        """Changes that are kept for the case of a truncation."""
        return len(self._history)

    @property
    def open_producers(self) -> Collection[int]:
        return self._open.keys()

    def knows(self, offset: int) -> bool:
        """Whether it is known how things were when the log ended there."""
        return offset >= self._history.from_offset

    def last_stable_offset(self, start_offset: int = 0) -> int:
        """`start_offset` of the log: retention may have taken the beginning of a transaction away."""
        unstable = min(self._first_open_offset(), *(each.first_offset for each in self._ended), self._high_watermark)
        return max(unstable, min(start_offset, self._high_watermark))

    def _first_open_offset(self) -> int:
        return next(iter(self._open.values()), self._high_watermark)

    # -- judging: a leader, before it appends ----------------------------------------------------------------------

    def begin_verification(self, producer_id: int, epoch: int, first_sequence: int, now_ms: int) -> int | ErrorCode:
        """NO_GUARD if the coordinator need not be asked: the transaction is open here. A retry that is found among
        the producer's batches is not asked about either."""
        known = self._producers.get(producer_id)
        if known is not None and known.is_open and known.epoch == epoch:
            return NO_GUARD
        return self.verifications.begin(producer_id, epoch, first_sequence, now_ms)

    def judge_batch(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        *,
        is_transactional: bool,
        guard: int = NO_GUARD,
        transaction_version: int = 0,
    ) -> Refused | None:
        """None: append it. A coordinator's batch, such as one of offsets, has no sequence numbers."""
        known = self._producers.get(producer_id)
        is_open = known is not None and known.is_open
        if known is not None and epoch < known.epoch:
            return Refused(ErrorCode.invalid_producer_epoch, f"fenced by epoch {known.epoch}")
        if not is_transactional:
            if is_open:
                return Refused(ErrorCode.invalid_txn_state, "a record outside of the producer's open transaction")
            return None
        if known is not None and is_open:
            # Two transactions under one marker would both be committed, or both be aborted.
            is_same = known.epoch == epoch
            return None if is_same else Refused(ErrorCode.invalid_txn_state, "its transaction before is still open")
        return self._judge_first_batch(producer_id, epoch, first_sequence, guard, transaction_version)

    def _judge_first_batch(
        self, producer_id: int, epoch: int, first_sequence: int, guard: int, transaction_version: int
    ) -> Refused | None:
        asked = self.verifications.get(producer_id)
        if asked is None or guard != asked.guard or epoch != asked.epoch:
            return Refused(ErrorCode.invalid_txn_state, "the partition is not known to be part of the transaction")
        if first_sequence == NO_SEQUENCE:
            return None
        # Each transaction of version 2 has an epoch of its own, and numbers begin at zero with each epoch.
        bumps = transaction_version >= EPOCH_BUMPS_SINCE_VERSION
        if first_sequence > (0 if bumps else asked.lowest_sequence):
            return Refused(ErrorCode.out_of_order_sequence_number, "an earlier batch is still to come")
        return None

    def judge_marker(self, marker: Marker) -> ToAppend | AlreadyMarked | Refused:
        known = self._producers.get(marker.producer_id)
        if known is None:
            return TO_APPEND
        if marker.coordinator_epoch < known.coordinator_epoch:
            return Refused(
                ErrorCode.transaction_coordinator_fenced, f"coordinator epoch {known.coordinator_epoch} was here"
            )
        if marker.producer_epoch < known.epoch:
            return Refused(ErrorCode.invalid_producer_epoch, f"the producer is at epoch {known.epoch}")
        # Before version 2 a marker of the same epoch may be another transaction's, which has written nothing here yet,
        # but may have a batch on its way: only a marker in the log takes its guard away.
        bumps = marker.transaction_version >= EPOCH_BUMPS_SINCE_VERSION
        if not bumps or marker.producer_epoch > known.epoch:
            return TO_APPEND
        if known.is_open:
            return Refused(ErrorCode.invalid_producer_epoch, "the marker of the transaction before, too late")
        if marker.coordinator_epoch > known.coordinator_epoch:
            return TO_APPEND
        return AlreadyMarked(known.marker_offset)

    # -- recording: what is in the log -----------------------------------------------------------------------------

    def record_batch(
        self, producer_id: int, epoch: int, base_offset: int, timestamp_ms: int, *, is_transactional: bool
    ) -> None:
        """Not of a control batch. Batches of producers that are not transactional change nothing."""
        if not is_transactional:
            return
        self.verifications.end(producer_id)
        known = self._producers.get(producer_id)
        if known is not None and known.is_open and known.epoch == epoch:
            return
        before = known or TransactionalProducer(epoch)
        first_offset = before.first_offset if before.is_open else base_offset
        now_open = before._replace(epoch=max(epoch, before.epoch), first_offset=first_offset, changed_ms=timestamp_ms)
        self._change(base_offset, producer_id, now_open)
        self._open.setdefault(producer_id, first_offset)

    def record_marker(self, marker: Marker, offset: int, timestamp_ms: int) -> None:
        self.verifications.end(marker.producer_id)
        known = self._producers.get(marker.producer_id)
        if known is not None and known.is_open:
            self._end(marker, known.first_offset, offset)
        self._change(
            offset,
            marker.producer_id,
            TransactionalProducer(
                epoch=max(marker.producer_epoch, -1 if known is None else known.epoch),
                coordinator_epoch=max(marker.coordinator_epoch, -1 if known is None else known.coordinator_epoch),
                marker_offset=offset,
                changed_ms=timestamp_ms,
            ),
        )

    def _end(self, marker: Marker, first_offset: int, offset: int) -> None:
        del self._open[marker.producer_id]
        self._ended.append(Ended(first_offset, offset))
        if not marker.is_commit:
            stable = next(iter(self._open.values()), offset + 1)
            self.aborted.add(AbortedTransaction(marker.producer_id, first_offset, offset, stable))

    def _change(self, offset: int, producer_id: int, after: TransactionalProducer) -> None:
        self._history.note(offset, producer_id, self._producers.get(producer_id))
        self._producers[producer_id] = after

    # -- the log's ends move ---------------------------------------------------------------------------------------

    def advance_watermark(self, high_watermark: int) -> None:
        self._high_watermark = max(self._high_watermark, high_watermark)
        while self._ended and self._ended[0].marker_offset < self._high_watermark:
            self._ended.popleft()

    def truncate_to(self, offset: int) -> bool:
        """False if it is not known any more how things were: the log is read again, from a snapshot on."""
        if offset < self._history.from_offset:
            return False
        self._undo(self._producers, offset)
        self._history.truncate_to(offset)
        self._ended = deque(each for each in self._ended if each.marker_offset < offset)
        self._high_watermark = min(self._high_watermark, offset)
        self.aborted.truncate_to(offset)
        self.verifications.clear()
        self._sort_open()
        return True

    def forget_verifications(self) -> None:
        """Whoever leads next asks the coordinators again."""
        self.verifications.clear()

    def as_of(self, offset: int) -> PartitionTransactions | None:
        """The table as it was when the log ended there, without the index of aborted transactions. None if it is not
        known any more."""
        if offset < self._history.from_offset:
            return None
        producers = dict(self._producers)
        self._undo(producers, offset)
        ended = [each for each in self._ended if each.marker_offset < offset]
        return PartitionTransactions(producers.items(), ended, offset)

    def forget_history(self, below_offset: int) -> None:
        """The log will not be truncated below, nor ask how things were."""
        self._history.forget_below(below_offset)

    def remove_below(self, start_offset: int) -> None:
        """The log begins here now. An open transaction that began before stays open: its marker is still to come."""
        self.aborted.remove_below(start_offset)

    def expire(self, changed_before_ms: int) -> list[int]:
        """Forgets producers that have ended their last transaction before then; returns their ids."""
        expired = [
            producer_id
            for producer_id, known in self._producers.items()
            if not known.is_open and known.changed_ms < changed_before_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        self.verifications.expire(changed_before_ms)
        return expired

    def _undo(self, producers: dict[int, TransactionalProducer], offset: int) -> None:
        for _, producer_id, before in self._history.since(offset):
            if before is None:
                producers.pop(producer_id, None)
            else:
                producers[producer_id] = before

    def _sort_open(self) -> None:
        found = [(known.first_offset, name) for name, known in self._producers.items() if known.is_open]
        self._open = {name: first_offset for first_offset, name in sorted(found)}

"""The transactions of one partition: which are open, which markers end them, and how far a reader may read.

A leader judges a batch or a marker before it appends it, and records it afterwards. A follower, and recovery, only
record. Leading, following and recovering therefore share one code path, and the table is a function of the log.

- A transaction is open from its first batch to its marker. A marker of a lower coordinator epoch is rejected, and so is
  a marker of a transaction that is over. A marker that is already in the log is recognized, if its epoch allows it, and
  not written again.
- The last stable offset is the start of the first transaction whose end is not committed: one that is open, or whose
  marker is not below the high watermark. Truncating a marker reopens its transaction (safety: last-stable-offset).
- Sequence numbers and retried batches belong to `machines.producers`. A retry found there is not judged here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from ottla.machines.transactions.aborted_index import AbortedIndex, AbortedTransaction
from ottla.machines.transactions.partition_history import History
from ottla.machines.transactions.records import EPOCH_BUMPS_SINCE_VERSION
from ottla.machines.transactions.verification import NO_GUARD, Verifications
from ottla.protocol.model.errors import ErrorCode, Refused

NOT_OPEN = -1
NO_OFFSET = -1
NO_SEQUENCE = -1


class TransactionalProducer(NamedTuple):
    """The transactional state of one producer in this partition."""

    epoch: int
    first_offset: int = NOT_OPEN
    """First offset of its open transaction."""
    coordinator_epoch: int = -1
    marker_offset: int = NO_OFFSET
    """Offset of its last marker."""
    changed_ms: int = -1
    """Time at which its transaction started in this partition or, if none is open, ended."""

    @property
    def is_open(self) -> bool:
        """True while the producer has a transaction in this partition."""
        return self.first_offset != NOT_OPEN


class OpenTransaction(NamedTuple):
    """A transaction that is open in this partition."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    started_ms: int


class UncommittedEnd(NamedTuple):
    """A transaction whose marker is not known to be committed."""

    first_offset: int
    marker_offset: int


class Marker(NamedTuple):
    """A marker that a coordinator asks to be written."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int = 0


class ToAppend(NamedTuple):
    pass


class AlreadyMarked(NamedTuple):
    """An earlier attempt wrote the marker. The reply waits until that marker is committed (safety: duplicates)."""

    offset: int


TO_APPEND = ToAppend()


class PartitionTransactions:
    """The transactions of one partition, as recorded in its log."""

    def __init__(
        self,
        producers: Iterable[tuple[int, TransactionalProducer]] = (),
        ended: Iterable[UncommittedEnd] = (),
        from_offset: int = 0,
    ) -> None:
        self._producers = dict(producers)
        self._open: dict[int, int] = {}
        """First offsets by producer id, in log order."""
        self._ended = deque(ended)
        """Ended transactions, in the order of their markers."""
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
        """Compares the state that the log determines, not state that exists only at run time."""
        return isinstance(other, PartitionTransactions) and (
            self._producers,
            self._open,
            self.aborted,
        ) == (other._producers, other._open, other.aborted)

    __hash__ = None  # type: ignore[assignment]  # mutable

    # -- queries ---------------------------------------------------------------------------------------------------

    def get(self, producer_id: int) -> TransactionalProducer | None:
        """Returns the state of a producer, or None if it is unknown here."""
        return self._producers.get(producer_id)

    @property
    def ended(self) -> tuple[UncommittedEnd, ...]:
        """The transactions that have ended but whose markers are above the high watermark, in log order."""
        return tuple(self._ended)

    def open_transactions(self) -> list[OpenTransaction]:
        """Returns the open transactions, oldest first."""
        found = ((producer_id, self._producers[producer_id]) for producer_id in self._open)
        return [OpenTransaction(name, each.epoch, each.first_offset, each.changed_ms) for name, each in found]

    @property
    def is_quiet(self) -> bool:
        """True if no transaction is open and every marker is committed: everything below the high watermark is
        stable."""
        return not self._open and not self._ended

    @property
    def history_length(self) -> int:
        """Number of changes that are kept in case of a truncation."""
        return len(self._history)

    @property
    def open_producers(self) -> Collection[int]:
        """The ids of the producers with an open transaction."""
        return self._open.keys()

    def knows(self, offset: int) -> bool:
        """Returns whether the state as of this log end offset is known."""
        return offset >= self._history.from_offset

    def last_stable_offset(self, start_offset: int = 0) -> int:
        """Returns the last stable offset. `start_offset` is that of the log: retention may have removed the start of a
        transaction."""
        unstable = min(self._first_open_offset(), *(each.first_offset for each in self._ended), self._high_watermark)
        return max(unstable, min(start_offset, self._high_watermark))

    def _first_open_offset(self) -> int:
        return next(iter(self._open.values()), self._high_watermark)

    # -- judging: by the leader, before it appends -----------------------------------------------------------------

    def begin_verification(self, producer_id: int, epoch: int, first_sequence: int, now_ms: int) -> int | ErrorCode:
        """Starts a verification and returns its guard. Returns NO_GUARD if the coordinator need not be asked because
        the transaction is open here. A retry found among the producer's batches needs no verification either."""
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
        """Returns None if the batch may be appended. A coordinator's batch, such as one with offsets, has no sequence
        numbers."""
        known = self._producers.get(producer_id)
        is_open = known is not None and known.is_open
        if known is not None and epoch < known.epoch:
            return Refused(ErrorCode.invalid_producer_epoch, f"fenced by epoch {known.epoch}")
        if not is_transactional:
            if is_open:
                return Refused(
                    ErrorCode.invalid_txn_state,
                    "the producer sent a non-transactional batch while its transaction is open",
                )
            return None
        if known is not None and is_open:
            # One marker would commit or abort both transactions together.
            is_same = known.epoch == epoch
            return (
                None
                if is_same
                else Refused(ErrorCode.invalid_txn_state, "the producer's previous transaction is still open")
            )
        return self._judge_first_batch(producer_id, epoch, first_sequence, guard, transaction_version)

    def _judge_first_batch(
        self, producer_id: int, epoch: int, first_sequence: int, guard: int, transaction_version: int
    ) -> Refused | None:
        asked = self.verifications.get(producer_id)
        if asked is None or guard != asked.guard or epoch != asked.epoch:
            return Refused(ErrorCode.invalid_txn_state, "the partition was not verified to be part of the transaction")
        if first_sequence == NO_SEQUENCE:
            return None
        # With version 2 each transaction has its own epoch, and sequence numbers start at zero in each epoch.
        bumps = transaction_version >= EPOCH_BUMPS_SINCE_VERSION
        if first_sequence > (0 if bumps else asked.lowest_sequence):
            return Refused(ErrorCode.out_of_order_sequence_number, "an earlier batch is missing")
        return None

    def judge_marker(self, marker: Marker) -> ToAppend | AlreadyMarked | Refused:
        """Decides whether to append a marker, or whether it is already in the log."""
        known = self._producers.get(marker.producer_id)
        if known is None:
            return TO_APPEND
        if marker.coordinator_epoch < known.coordinator_epoch:
            return Refused(
                ErrorCode.transaction_coordinator_fenced, f"fenced by coordinator epoch {known.coordinator_epoch}"
            )
        if marker.producer_epoch < known.epoch:
            return Refused(ErrorCode.invalid_producer_epoch, f"the producer is at epoch {known.epoch}")
        # Before version 2, a marker of the same epoch may belong to another transaction that has written nothing here
        # yet but may have a batch in flight. Only a marker in the log invalidates the guard of that batch.
        bumps = marker.transaction_version >= EPOCH_BUMPS_SINCE_VERSION
        if not bumps or marker.producer_epoch > known.epoch:
            return TO_APPEND
        if known.is_open:
            return Refused(ErrorCode.invalid_producer_epoch, "a late marker of the previous transaction")
        if marker.coordinator_epoch > known.coordinator_epoch:
            return TO_APPEND
        return AlreadyMarked(known.marker_offset)

    # -- recording: what the log contains --------------------------------------------------------------------------

    def record_batch(
        self, producer_id: int, epoch: int, base_offset: int, timestamp_ms: int, *, is_transactional: bool
    ) -> None:
        """Records a data batch, not a control batch. Batches of producers that are not transactional change nothing."""
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
        """Records a marker that is in the log."""
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
        self._ended.append(UncommittedEnd(first_offset, offset))
        if not marker.is_commit:
            stable = next(iter(self._open.values()), offset + 1)
            self.aborted.add(AbortedTransaction(marker.producer_id, first_offset, offset, stable))

    def _change(self, offset: int, producer_id: int, after: TransactionalProducer) -> None:
        self._history.note(offset, producer_id, self._producers.get(producer_id))
        self._producers[producer_id] = after

    # -- movements of the log's ends -------------------------------------------------------------------------------

    def advance_watermark(self, high_watermark: int) -> None:
        """Raises the high watermark, which commits the markers below it. Never lowers it."""
        self._high_watermark = max(self._high_watermark, high_watermark)
        while self._ended and self._ended[0].marker_offset < self._high_watermark:
            self._ended.popleft()

    def truncate_to(self, offset: int) -> bool:
        """Undoes all changes from this offset on. Returns False if the earlier state is no longer known; the caller
        then replays the log from a snapshot."""
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
        """Drops all guards. The next leader asks the coordinators again."""
        self.verifications.clear()

    def as_of(self, offset: int) -> PartitionTransactions | None:
        """Returns the table as of this log end offset, without the index of aborted transactions. Returns None if that
        state is no longer known."""
        if offset < self._history.from_offset:
            return None
        producers = dict(self._producers)
        self._undo(producers, offset)
        ended = [each for each in self._ended if each.marker_offset < offset]
        return PartitionTransactions(producers.items(), ended, offset)

    def forget_history(self, below_offset: int) -> None:
        """Discards history below an offset. The log is not truncated below it, and asks for no state below it."""
        self._history.forget_below(below_offset)

    def remove_below(self, start_offset: int) -> None:
        """Moves the start of the log. An open transaction that started before it stays open: its marker is still to
        come."""
        self.aborted.remove_below(start_offset)

    def expire(self, changed_before_ms: int) -> list[int]:
        """Forgets producers whose last transaction ended before this time. Returns their ids."""
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

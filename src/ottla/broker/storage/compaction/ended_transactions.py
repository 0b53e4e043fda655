"""The transactions in the part of a log that is compacted. All of it lies below the last stable offset, so all of them
have ended.

* Keys of committed transactions count like any others. Records of aborted transactions are removed, and their keys are
  ignored.
* A marker stays as long as any record of its transaction does. When none is left, the marker gets a delete horizon,
  like a tombstone, and is removed after it: a reader in the middle of the transaction still needs it.
* The marker of an aborted transaction stays as long as the transaction is in the index, including the index on disk. A
  reader that was told of the abort but found no marker would take the producer's next transaction for aborted. The
  transaction leaves the index in the first compaction that finds nothing of it any more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from ottla.machines.transactions.aborted_index import AbortedTransaction
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.compacted_batches import has_delete_horizon


class EndedTransactions:
    """Decides about the batches of ended transactions. Batches must be presented in the order of the log."""

    def __init__(self, aborted: Iterable[AbortedTransaction] = (), *, is_index_saved: bool = True) -> None:
        self._spans: dict[int, list[tuple[int, int]]] = {}
        self._aborts: set[int] = set()
        for each in aborted:
            self._spans.setdefault(each.producer_id, []).append((each.first_offset, each.last_offset))
            self._aborts.add(each.last_offset)
        self._is_index_saved = is_index_saved
        self._left: set[int] = set()
        """Producers with records left of the transaction that their next marker ends."""
        self.forgotten: set[int] = set()
        """Markers of aborted transactions of which nothing was left before this compaction."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Reports whether a batch belongs to an aborted transaction."""
        spans = self._spans.get(header.producer_id) if header.is_transactional else None
        if not spans:
            return False
        place = bisect_right(spans, header.base_offset, key=lambda span: span[0]) - 1
        return place >= 0 and header.base_offset < spans[place][1]

    def has_keys(self, header: BatchHeader) -> bool:
        """Reports whether the keys of a batch supersede older records with the same keys."""
        return header.record_count > 0 and not header.is_control and not self.is_aborted(header)

    def note_left(self, header: BatchHeader) -> None:
        """Notes that records of a batch are kept."""
        if header.is_transactional:
            self._left.add(header.producer_id)

    def ends_nothing(self, header: BatchHeader) -> bool:
        """Reports whether nothing is left of the transaction that a marker ends."""
        is_left = header.producer_id in self._left
        self._left.discard(header.producer_id)
        if not is_left and has_delete_horizon(header) and header.base_offset in self._aborts:
            self.forgotten.add(header.base_offset)
        return not is_left

    def may_go(self, header: BatchHeader, now_ms: int) -> bool:
        """Reports whether a marker that ends nothing may be removed."""
        is_needed = header.base_offset in self._aborts or not self._is_index_saved
        return has_delete_horizon(header) and now_ms >= header.base_timestamp and not is_needed

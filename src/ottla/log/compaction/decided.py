"""The transactions in the part of a log that is compacted. All of it lies below the last stable offset: all are over.

* Keys of committed transactions count like any others. Records of aborted ones are removed, and their keys say nothing.
* A marker stays as long as anything of its transaction does. When nothing is left, it gets a delete horizon (as
  tombstones do), after which it goes: a reader that is in the middle of the transaction needs it.
* The marker of an aborted transaction stays as long as the index has the transaction, also on the disk. A reader that
  were told of it, and found no marker, would take the producer's next transaction for aborted. It leaves the index in
  the first compaction that finds nothing of it any more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from ottla.machines.transactions.aborted_index import AbortedTransaction
from ottla.records.batch import BatchHeader
from ottla.records.compacted import has_delete_horizon


class DecidedTransactions:
    """Batches are shown to it in the order of the log."""

    def __init__(self, aborted: Iterable[AbortedTransaction] = (), *, is_index_saved: bool = True) -> None:
        self._spans: dict[int, list[tuple[int, int]]] = {}
        self._aborts: set[int] = set()
        for each in aborted:
            self._spans.setdefault(each.producer_id, []).append((each.first_offset, each.last_offset))
            self._aborts.add(each.last_offset)
        self._is_index_saved = is_index_saved
        self._left: set[int] = set()
        """Producers with something left of the transaction that the next marker ends."""
        self.forgotten: set[int] = set()
        """Markers of aborted transactions of which nothing was left before."""

    def is_aborted(self, header: BatchHeader) -> bool:
        spans = self._spans.get(header.producer_id) if header.is_transactional else None
        if not spans:
            return False
        place = bisect_right(spans, header.base_offset, key=lambda span: span[0]) - 1
        return place >= 0 and header.base_offset < spans[place][1]

    def has_keys(self, header: BatchHeader) -> bool:
        """Whether the keys of a batch make older records of the same keys superfluous."""
        return header.record_count > 0 and not header.is_control and not self.is_aborted(header)

    def note_left(self, header: BatchHeader) -> None:
        if header.is_transactional:
            self._left.add(header.producer_id)

    def ends_nothing(self, header: BatchHeader) -> bool:
        """Of a marker: nothing is left of its transaction."""
        is_left = header.producer_id in self._left
        self._left.discard(header.producer_id)
        if not is_left and has_delete_horizon(header) and header.base_offset in self._aborts:
            self.forgotten.add(header.base_offset)
        return not is_left

    def may_go(self, header: BatchHeader, now_ms: int) -> bool:
        """Of a marker that ends nothing."""
        is_needed = header.base_offset in self._aborts or not self._is_index_saved
        return has_delete_horizon(header) and now_ms >= header.base_timestamp and not is_needed

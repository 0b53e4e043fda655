"""The index of aborted transactions of one log, which a read_committed consumer skips.

An entry is written at the transaction's marker, so entries are ordered by their last offset. The encoding is that of
Kafka's `.txnindex` files; a log may keep one such file for each segment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

_ENTRY = Struct(">hqqqq")
_VERSION = 0


class AbortedTransaction(NamedTuple):
    """One entry of the index."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Offset of the transaction's marker."""
    last_stable_offset: int
    """Last stable offset when the marker was written. A transaction aborted later starts at this offset or above."""


class AbortedIndex:
    """The aborted transactions of one log, in the order of their markers."""

    __slots__ = ("_entries", "removals", "removals_saved")

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._entries = list(entries)
        self.removals = 0
        """Number of times that entries were removed from the middle. Files written before a removal still
        contain them."""
        self.removals_saved = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return iter(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbortedIndex) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]  # mutable

    def add(self, entry: AbortedTransaction) -> None:
        """Adds a transaction whose abort marker was appended after all markers added before."""
        is_next = not self._entries or entry.last_offset > self._entries[-1].last_offset
        assert is_next, "markers are recorded in the order of the log"
        self._entries.append(entry)

    def between(self, fetch_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Returns the transactions that have records from `fetch_offset` up to, but not including, `upper_offset`."""
        found = []
        for place in range(self._place(fetch_offset), len(self._entries)):
            entry = self._entries[place]
            if entry.first_offset < upper_offset:
                found.append(entry)
            if entry.last_stable_offset >= upper_offset:
                break
        return found

    def truncate_to(self, offset: int) -> None:
        """Removes entries whose markers are at this offset or above."""
        del self._entries[self._place(offset) :]

    def remove_below(self, start_offset: int) -> None:
        """Removes entries whose markers are below the new start of the log."""
        del self._entries[: self._place(start_offset)]

    def remove_ended_at(self, last_offsets: Collection[int]) -> None:
        """Removes transactions of which no record is left in the log."""
        kept = [entry for entry in self._entries if entry.last_offset not in last_offsets]
        if len(kept) < len(self._entries):
            self._entries = kept
            self.removals += 1

    @property
    def is_saved(self) -> bool:
        """True if no removed entry would come back after a restart."""
        return self.removals == self.removals_saved

    def _place(self, offset: int) -> int:
        """Returns the index of the first entry that ends at this offset or above."""
        return bisect_left(self._entries, offset, key=lambda entry: entry.last_offset)

    def encode(self, from_offset: int, to_offset: int) -> bytes:
        """Encodes the entries whose markers are in this part of the log."""
        part = self._entries[self._place(from_offset) : self._place(to_offset)]
        return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in part)

    @classmethod
    def decode(cls, data: bytes) -> AbortedIndex | None:
        """Decodes an index. Returns None if it is truncated, out of order, or of an unknown version; the caller then
        reads the log instead."""
        if len(data) % _ENTRY.size:
            return None
        entries = list(_ENTRY.iter_unpack(data))
        if any(version != _VERSION for version, *_ in entries):
            return None
        found = [AbortedTransaction(*fields) for _, *fields in entries]
        is_ordered = all(one.last_offset < other.last_offset for one, other in pairwise(found))
        return cls(found) if is_ordered else None

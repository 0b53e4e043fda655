"""The truncations that a journal holds, for its replay at start-up.

An append that a later truncation took back is not replayed: it may not even follow on, if the recovery point was
lowered to the cut before the crash. And a log is opened no further than its lowest cut: what came after it is in the
journal, because space is released in the order in which it was written.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

from ottla.log.journal import JournalEntry, Mutation
from ottla.model.ids import LogKey


class Cuts:
    def __init__(self) -> None:
        self._by_log: defaultdict[LogKey, deque[int]] = defaultdict(deque)
        """The end after each truncation, in the order of the journal."""

    @classmethod
    def of(cls, entries: Iterable[JournalEntry]) -> Cuts:
        cuts = cls()
        for entry in entries:
            if entry.kind is Mutation.TRUNCATE:
                cuts._by_log[entry.key].append(entry.offset)
        return cuts

    def lowest(self) -> dict[LogKey, int]:
        return {key: min(offsets) for key, offsets in self._by_log.items()}

    def takes_back(self, entry: JournalEntry) -> bool:
        """Whether a later truncation took an append back. Ask for every entry, in order."""
        later = self._by_log.get(entry.key)
        if not later:
            return False
        if entry.kind is Mutation.TRUNCATE:
            later.popleft()
            return False
        return entry.kind is Mutation.APPEND and entry.offset >= min(later)

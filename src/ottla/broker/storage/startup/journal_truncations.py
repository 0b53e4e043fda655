"""The truncations and resets in a journal, for its replay at start-up.

An append that a later truncation removed is not replayed: it may not even be contiguous, if the recovery point was
lowered to the truncation before the crash. A log is opened only up to its lowest truncation. Everything appended after
it is in the journal, because space is released in the order in which it was written.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import NamedTuple

from ottla.broker.storage.journal import JournalEntry, Mutation
from ottla.protocol.model.ids import LogKey


class JournalTruncation(NamedTuple):
    """One truncation or reset of a log."""

    offset: int
    resets: bool
    """True if everything before it is dropped, not only the part above the offset."""


class JournalTruncations:
    """The truncations of all logs in a journal."""

    def __init__(self) -> None:
        self._by_log: defaultdict[LogKey, deque[JournalTruncation]] = defaultdict(deque)
        """The truncations of each log, in the order of the journal."""

    @classmethod
    def of(cls, entries: Iterable[JournalEntry]) -> JournalTruncations:
        """Collects the truncations among the journal's entries."""
        cuts = cls()
        for entry in entries:
            if entry.kind in (Mutation.TRUNCATE, Mutation.RESET):
                cuts._by_log[entry.key].append(JournalTruncation(entry.offset, entry.kind is Mutation.RESET))
        return cuts

    def lowest(self) -> dict[LogKey, JournalTruncation]:
        """Returns the truncation up to which each log is opened: its last reset, or else its lowest truncation."""
        found: dict[LogKey, JournalTruncation] = {}
        for key, cuts in self._by_log.items():
            resets = [cut for cut in cuts if cut.resets]
            found[key] = resets[-1] if resets else min(cuts)
        return found

    def takes_back(self, entry: JournalEntry) -> bool:
        """Reports whether a later entry undid this one. Must be called for every entry, in order."""
        later = self._by_log.get(entry.key)
        if not later:
            return False
        if entry.kind in (Mutation.TRUNCATE, Mutation.RESET):
            later.popleft()
            return False
        if any(cut.resets for cut in later):
            return True
        return entry.kind is Mutation.APPEND and entry.offset >= min(later).offset

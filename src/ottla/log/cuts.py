"""The truncations and resets that a journal holds, for its replay at start-up.

An append that a later truncation took back is not replayed: it may not even follow on, if the recovery point was
lowered to the cut before the crash. And a log is opened no further than its lowest cut: what came after it is in the
journal, because space is released in the order in which it was written.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import NamedTuple

from ottla.log.journal import JournalEntry, Mutation
from ottla.model.ids import LogKey


class Cut(NamedTuple):
    offset: int
    resets: bool
    """Everything before it is given up, not only what lies above the offset."""


class Cuts:
    def __init__(self) -> None:
        self._by_log: defaultdict[LogKey, deque[Cut]] = defaultdict(deque)
        """In the order of the journal."""

    @classmethod
    def of(cls, entries: Iterable[JournalEntry]) -> Cuts:
        cuts = cls()
        for entry in entries:
            if entry.kind in (Mutation.TRUNCATE, Mutation.RESET):
                cuts._by_log[entry.key].append(Cut(entry.offset, entry.kind is Mutation.RESET))
        return cuts

    def lowest(self) -> dict[LogKey, Cut]:
        """Where each log is opened to: at its last reset, or cut at its lowest truncation."""
        found: dict[LogKey, Cut] = {}
        for key, cuts in self._by_log.items():
            resets = [cut for cut in cuts if cut.resets]
            found[key] = resets[-1] if resets else min(cuts)
        return found

    def takes_back(self, entry: JournalEntry) -> bool:
        """Whether a later entry took an append back. Ask for every entry, in order."""
        later = self._by_log.get(entry.key)
        if not later:
            return False
        if entry.kind in (Mutation.TRUNCATE, Mutation.RESET):
            later.popleft()
            return False
        if any(cut.resets for cut in later):
            return True
        return entry.kind is Mutation.APPEND and entry.offset >= min(later).offset

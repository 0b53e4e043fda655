"""The transactions of a log, found by a simple scan from the beginning."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.machines.transactions.aborted_index import AbortedTransaction
from tests.support.transactions_driver import Batch, Control

Entries = Sequence[Batch | Control]


def committed_contents(entries: Entries, below: int) -> set[object]:
    """Returns the records below an offset that a marker anywhere in the log commits."""
    found: set[object] = set()
    running: dict[int, set[object]] = {}
    for offset, entry in enumerate(entries):
        if isinstance(entry, Batch):
            if offset < below:
                running.setdefault(entry.producer_id, set()).add(entry.content)
        else:
            contents = running.pop(entry.marker.producer_id, set())
            if entry.marker.is_commit:
                found |= contents
    return found


def stable_offset(entries: Entries, watermark: int) -> int:
    """Returns the start of the first transaction without a marker below the high watermark."""
    first: dict[int, int] = {}
    for offset, entry in enumerate(entries[:watermark]):
        if isinstance(entry, Batch):
            first.setdefault(entry.producer_id, offset)
        else:
            first.pop(entry.marker.producer_id, None)
    return min([*first.values(), watermark])


def read_committed(entries: Entries, aborted: list[AbortedTransaction]) -> set[object]:
    """Reads as a consumer does: gets the aborted transactions by producer and first offset, and finds their markers."""
    waiting = sorted(aborted, key=lambda each: each.first_offset)
    skipped: set[int] = set()
    found: set[object] = set()
    for offset, entry in enumerate(entries):
        while waiting and waiting[0].first_offset <= offset:
            skipped.add(waiting.pop(0).producer_id)
        if isinstance(entry, Control):
            if not entry.marker.is_commit:
                skipped.discard(entry.marker.producer_id)
        elif entry.producer_id not in skipped:
            found.add(entry.content)
    return found

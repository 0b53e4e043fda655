"""Verifies that acknowledged records exist exactly once, in order, at their acknowledged offset.

A load generator writes records that carry their writer (`source`) and a per-partition count of that writer
(`sequence`), and enters each acknowledgement here. After a crash, the records that a reader found are compared with the
ledger.

An unacknowledged record may exist or not. If it exists, it must be in the same order.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

PROBLEMS_SHOWN_MAX = 20

Who = tuple[int, int]
"""The source and the sequence of a record."""
Found = tuple[int, int, int]
"""An offset, and the source and the sequence of the record at it."""


@dataclass(slots=True)
class Findings:
    """The counts of a comparison. `problems` describes the first few faults."""

    acknowledged: int = 0
    read: int = 0
    missing: int = 0
    misplaced: int = 0
    doubled: int = 0
    reordered: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no fault was found."""
        return not (self.missing or self.misplaced or self.doubled or self.reordered)

    def note(self, problem: str) -> None:
        """Keeps a description of a fault, up to a limit."""
        if len(self.problems) < PROBLEMS_SHOWN_MAX:
            self.problems.append(problem)

    def add(self, other: Findings) -> None:
        """Adds the counts of another comparison."""
        self.acknowledged += other.acknowledged
        self.read += other.read
        self.missing += other.missing
        self.misplaced += other.misplaced
        self.doubled += other.doubled
        self.reordered += other.reordered
        for problem in other.problems:
            self.note(problem)


class Ledger:
    """Acknowledgements by partition and offset.

    Example:

        ledger = Ledger()
        ledger.acknowledged(("orders", 0), offset=7, source=1, sequence=3)
        ...                                                   # crash, restart, read everything
        findings = ledger.compare(("orders", 0), [(7, 1, 3)])
        assert findings.ok, findings.problems
    """

    def __init__(self) -> None:
        self._partitions: dict[Hashable, dict[int, Who]] = {}
        self._contradictions: dict[Hashable, list[str]] = {}
        self._last_offsets: dict[Hashable, int] = {}

    def acknowledged(self, partition: Hashable, offset: int, source: int, sequence: int) -> None:
        """Enters an acknowledgement."""
        who = (source, sequence)
        if offset > self._last_offsets.get(partition, -1):
            self._last_offsets[partition] = offset
        first = self._partitions.setdefault(partition, {}).setdefault(offset, who)
        if first != who:
            sentence = f"{partition}: offset {offset} was acknowledged to {first} and to {who}"
            self._contradictions.setdefault(partition, []).append(sentence)

    def rewind(self, partition: Hashable, found: Sequence[Found]) -> None:
        """Resets the partition to what a reader found, after a fault that was allowed to lose records."""
        self._partitions[partition] = {offset: (source, sequence) for offset, source, sequence in found}
        self._last_offsets[partition] = max((offset for offset, _, _ in found), default=-1)
        self._contradictions.pop(partition, None)

    def last_offset(self, partition: Hashable) -> int:
        """Returns the highest acknowledged offset, or -1 if there is none."""
        return self._last_offsets.get(partition, -1)

    def count(self) -> int:
        """Returns the number of entries in all partitions."""
        return sum(len(entries) for entries in self._partitions.values())

    def compare(self, partition: Hashable, found: Sequence[Found], *, start_offset: int = 0) -> Findings:
        """Compares everything that a reader found in a partition with the ledger.

        Acknowledgements below `start_offset` (records deleted on request) do not count.
        """
        findings = Findings(read=len(found))
        _check_order(findings, partition, found)
        for sentence in self._contradictions.get(partition, ()):
            findings.misplaced += 1
            findings.note(sentence)
        there = {offset: (source, sequence) for offset, source, sequence in found}
        entries = self._partitions.get(partition, {})
        absent = {}
        for offset, who in entries.items():
            if offset >= start_offset:
                findings.acknowledged += 1
                if there.get(offset) != who:
                    absent[offset] = who
        _check_absent(findings, partition, found, absent)
        return findings


def _check_order(findings: Findings, partition: Hashable, found: Sequence[Found]) -> None:
    """Checks that offsets and the sequences of each source increase. Counts duplicates and reorderings."""
    last_offset = -1
    last_sequence: dict[int, int] = {}
    places: dict[Who, int] = {}
    for offset, source, sequence in found:
        if offset <= last_offset:
            findings.reordered += 1
            findings.note(f"{partition}: offset {offset} was read after {last_offset}")
        if sequence <= last_sequence.get(source, -1):
            places = places or _first_places(found)
            if (first := places[source, sequence]) != offset:
                findings.doubled += 1
                findings.note(f"{partition}: record {(source, sequence)} is at {first} and again at {offset}")
            else:
                findings.reordered += 1
                findings.note(f"{partition}: record {(source, sequence)} at {offset} is after {last_sequence[source]}")
        last_offset = offset
        last_sequence[source] = sequence


def _check_absent(findings: Findings, partition: Hashable, found: Sequence[Found], absent: Mapping[int, Who]) -> None:
    """Counts records away from their acknowledged offset: misplaced if they are elsewhere, missing if nowhere."""
    places = _first_places(found) if absent else {}
    for offset, who in absent.items():
        place = places.get(who)
        if place is None:
            findings.missing += 1
            findings.note(f"{partition}: record {who}, acknowledged at {offset}, is missing")
        else:
            findings.misplaced += 1
            findings.note(f"{partition}: record {who} was acknowledged at {offset} and is at {place}")


def _first_places(found: Sequence[Found]) -> dict[Who, int]:
    places: dict[Who, int] = {}
    for offset, source, sequence in found:
        places.setdefault((source, sequence), offset)
    return places

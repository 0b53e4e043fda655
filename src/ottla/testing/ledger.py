"""Proof that what was acknowledged is there: once, in order, at the offset that the acknowledgement named.

A loader writes records that carry who wrote them (`source`) and a count of that writer in that partition
(`sequence`), and enters each acknowledgement here. After a crash a reader's findings are compared with the ledger.

A record without an acknowledgement may be there or not. If it is there, it obeys the same order.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

PROBLEMS_SHOWN_MAX = 20

Who = tuple[int, int]
"""A record's source and its sequence."""
Found = tuple[int, int, int]
"""An offset, and the source and the sequence of the record there."""


@dataclass(slots=True)
class Findings:
    """What a comparison counted. `problems` has a sentence for each of the first few faults."""

    acknowledged: int = 0
    read: int = 0
    missing: int = 0
    misplaced: int = 0
    doubled: int = 0
    reordered: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.missing or self.misplaced or self.doubled or self.reordered)

    def note(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_SHOWN_MAX:
            self.problems.append(problem)

    def add(self, other: Findings) -> None:
        self.acknowledged += other.acknowledged
        self.read += other.read
        self.missing += other.missing
        self.misplaced += other.misplaced
        self.doubled += other.doubled
        self.reordered += other.reordered
        for problem in other.problems:
            self.note(problem)


class Ledger:
    """Acknowledgements by partition and offset."""

    def __init__(self) -> None:
        self._partitions: dict[Hashable, dict[int, Who]] = {}
        self._contradictions: dict[Hashable, list[str]] = {}
        self._last_offsets: dict[Hashable, int] = {}

    def acknowledged(self, partition: Hashable, offset: int, source: int, sequence: int) -> None:
        who = (source, sequence)
        if offset > self._last_offsets.get(partition, -1):
            self._last_offsets[partition] = offset
        first = self._partitions.setdefault(partition, {}).setdefault(offset, who)
        if first != who:
            sentence = f"{partition}: offset {offset} was acknowledged to {first} and to {who}"
            self._contradictions.setdefault(partition, []).append(sentence)

    def rewind(self, partition: Hashable, found: Sequence[Found]) -> None:
        """A fault was allowed to take records back: from now on the partition is what a reader found."""
        self._partitions[partition] = {offset: (source, sequence) for offset, source, sequence in found}

    def last_offset(self, partition: Hashable) -> int:
        """The highest acknowledged offset; -1 if there is none."""
        return self._last_offsets.get(partition, -1)

    def count(self) -> int:
        return sum(len(entries) for entries in self._partitions.values())

    def compare(self, partition: Hashable, found: Sequence[Found], *, start_offset: int = 0) -> Findings:
        """Compares all that a reader found in a partition with the ledger.

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
    """Offsets rise, and so do the sequences of each source: what breaks this is doubled or reordered."""
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
    """What is not at its acknowledged offset is elsewhere (misplaced) or nowhere (missing)."""
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

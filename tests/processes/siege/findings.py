"""The findings of a check: anomalies by kind, with descriptions of the first few of each."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum

SHOWN_MAX = 10


class Anomaly(StrEnum):
    """The kinds of anomalies, with the names of Jepsen's Kafka workload where it has one."""

    LOST = "lost"
    """Acknowledged or read, and no longer present, though the log continues beyond it."""
    UNSEEN = "unseen after healing"
    """Acknowledged or read, and at or beyond the end that all readers see when every fault is over."""
    DUPLICATE = "duplicate"
    """One value at two offsets."""
    INCONSISTENT = "inconsistent offset"
    """Two values at one offset."""
    REORDERED = "reordered"
    """A producer's later value before an earlier one."""
    SKIPPED = "skipped"
    """A reader skipped an offset that has a value."""
    BACKWARDS = "backwards"
    """A reader got an offset again without seeking."""
    ABORTED = "aborted read"
    """A value that certainly failed was acknowledged or read."""
    STALE = "stale end"
    """The log end, requested after an acknowledgement, was below it."""
    NEVER_SENT = "never sent"
    CHANGED = "changed"
    """The bytes differ from what was sent."""
    BROKEN = "broken"
    """A finding outside the history: a broker that ended by itself, a cluster that did not recover."""


@dataclass(slots=True)
class Findings:
    """Anomalies by kind: an `Anomaly` of plain writers and readers, or the name that the check of a workload gives."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def ok(self) -> bool:
        return not self.counts

    @property
    def first(self) -> str:
        """One anomaly with its description; empty if there is none."""
        return next((f"{anomaly}: {self.examples[anomaly][0]}" for anomaly in sorted(self.counts)), "")

    def add(self, anomaly: str, sentence: str) -> None:
        self.counts[anomaly] += 1
        if len(self.examples[anomaly]) < SHOWN_MAX:
            self.examples[anomaly].append(sentence)

    def lines(self) -> list[str]:
        lines = []
        for anomaly, count in sorted(self.counts.items()):
            lines.append(f"{anomaly}: {count}")
            lines.extend(f"    {sentence}" for sentence in self.examples[anomaly])
        return lines

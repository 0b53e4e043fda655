"""What a check found: anomalies by kind, the first few of each in words."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum

SHOWN_MAX = 10


class Anomaly(StrEnum):
    """In the words of Jepsen's Kafka workload where it has one."""

    LOST = "lost"
    """Acknowledged or read, and no longer there, though the log goes on behind it."""
    UNSEEN = "unseen after healing"
    """Acknowledged or read, and at or behind the end that all readers see when every fault is over."""
    DUPLICATE = "duplicate"
    """One value at two offsets."""
    INCONSISTENT = "inconsistent offset"
    """Two values at one offset."""
    REORDERED = "reordered"
    """A producer's later value before an earlier one."""
    SKIPPED = "skipped"
    """A reader went over an offset that has a value."""
    BACKWARDS = "backwards"
    """A reader got an offset again without having asked for it."""
    ABORTED = "aborted read"
    """A value that certainly failed was acknowledged or read."""
    STALE = "stale end"
    """The end of the log, asked for after an acknowledgement, was before it."""
    NEVER_SENT = "never sent"
    CHANGED = "changed"
    """The bytes differ from what was sent."""
    BROKEN = "broken"
    """Beside the history: a broker that ended by itself, a cluster that did not heal."""


@dataclass(slots=True)
class Findings:
    counts: Counter[Anomaly] = field(default_factory=Counter)
    examples: defaultdict[Anomaly, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def ok(self) -> bool:
        return not self.counts

    def add(self, anomaly: Anomaly, sentence: str) -> None:
        self.counts[anomaly] += 1
        if len(self.examples[anomaly]) < SHOWN_MAX:
            self.examples[anomaly].append(sentence)

    def lines(self) -> list[str]:
        lines = []
        for anomaly, count in sorted(self.counts.items()):
            lines.append(f"{anomaly}: {count}")
            lines.extend(f"    {sentence}" for sentence in self.examples[anomaly])
        return lines

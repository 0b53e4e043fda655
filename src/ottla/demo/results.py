"""The results of the siege, as numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.testing.ledger import Findings


class Sample(NamedTuple):
    """The number of acknowledged records at one moment."""

    at_s: float
    """Seconds since the first record was sent."""
    acknowledged: int


class Event(NamedTuple):
    """An event to mark in the plot."""

    at_s: float
    text: str


@dataclass(slots=True)
class CrashResults:
    """The measurements of the siege."""

    records: int
    write_s: float = 0.0
    read_s: float = 0.0
    victim: int = 0
    """The broker that was killed in mid-stream."""
    led: list[int] = field(default_factory=list)
    """The partitions that the killed broker led."""
    acknowledged_before_kill: int = 0
    new_leaders_s: float = 0.0
    """Time from the kill until a client sees new leaders for all these partitions."""
    next_write_s: dict[int, float] = field(default_factory=dict)
    """For each of these partitions, the time from the kill to the acknowledgement of a record sent after it."""
    restart_s: float = 0.0
    in_sync_s: float = 0.0
    """Time from the restart of the killed broker until it was in sync again."""
    outage_s: float = 0.0
    """Time from the restart of all brokers, after all were killed, until all serve."""
    probes: int = 0
    """Number of additional records that were written for measurement."""
    samples: list[Sample] = field(default_factory=list)
    """Acknowledged records, sampled several times a second."""
    events: list[Event] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)

    @property
    def proven(self) -> bool:
        """Whether the kill came in mid-stream, every write was acknowledged, and every acknowledged record exists."""
        in_the_middle = 0 < self.acknowledged_before_kill < self.records and bool(self.next_write_s)
        complete = self.findings.acknowledged == self.findings.read == self.records + self.probes
        return in_the_middle and complete and self.findings.ok

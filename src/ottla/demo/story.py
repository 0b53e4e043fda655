"""What happened in the demo, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.testing.ledger import Findings


class Sample(NamedTuple):
    at_s: float
    """Since the first record was sent."""
    acknowledged: int


class Event(NamedTuple):
    at_s: float
    text: str


@dataclass(slots=True)
class Story:
    records: int
    write_s: float = 0.0
    read_s: float = 0.0
    victim: int = 0
    """The broker that was killed in mid-stream."""
    led: list[int] = field(default_factory=list)
    """The partitions that it led then."""
    acknowledged_before_kill: int = 0
    new_leaders_s: float = 0.0
    """From the kill until a client is told of new leaders for all of them."""
    next_write_s: dict[int, float] = field(default_factory=dict)
    """For each of these partitions, from the kill to the acknowledgement of a record that was sent after it."""
    restart_s: float = 0.0
    in_sync_s: float = 0.0
    """From the restart of the killed broker until it had everything again that the others have."""
    outage_s: float = 0.0
    """From the restart of all brokers, after all of them were killed, until all serve."""
    probes: int = 0
    """Records that were written beside the others, to measure."""
    samples: list[Sample] = field(default_factory=list)
    """How many records were acknowledged, several times a second."""
    events: list[Event] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)

    @property
    def proven(self) -> bool:
        """The kill came in the middle, everything was acknowledged, and everything acknowledged is there."""
        in_the_middle = 0 < self.acknowledged_before_kill < self.records and bool(self.next_write_s)
        complete = self.findings.acknowledged == self.findings.read == self.records + self.probes
        return in_the_middle and complete and self.findings.ok

"""The final table of a siege: the work done, the effects that clients noticed, and the findings."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.processes.siege.findings import Findings
from tests.processes.siege.history import Assigned, History


@dataclass(slots=True)
class Phase:
    """All periods of one name together."""

    seconds: float = 0.0
    latencies_us: list[int] = field(default_factory=list)
    gap_us: int = 0
    """The longest time without an acknowledgement of any partition."""
    partition_gap_us: int = 0
    """The same for a single partition."""


def phases_of(history: History) -> dict[str, Phase]:
    """Latencies belong to the phase in which a record was sent, gaps to the phase that covers most of them."""
    marks = [mark for mark in history.marks if mark.kind == "phase"]
    times = [mark.at_us for mark in marks]
    phases: dict[str, Phase] = defaultdict(Phase)
    for mark, following in itertools.pairwise(marks):
        phases[mark.name].seconds += (following.at_us - mark.at_us) / 1e6

    def phase_at(at_us: float) -> Phase | None:
        index = bisect_right(times, at_us) - 1
        return phases[marks[index].name] if 0 <= index < len(marks) - 1 else None

    all_times: list[int] = []
    for partition in history.partitions.values():
        for one in partition.acknowledged:
            if (phase := phase_at(one.at_us - one.latency_us)) is not None:
                phase.latencies_us.append(one.latency_us)
        own = sorted(one.at_us for one in partition.acknowledged)
        all_times += own
        for before, after in itertools.pairwise(own):
            if (phase := phase_at((before + after) / 2)) is not None:
                phase.partition_gap_us = max(phase.partition_gap_us, after - before)
    all_times.sort()
    for before, after in itertools.pairwise(all_times):
        if (phase := phase_at((before + after) / 2)) is not None:
            phase.gap_us = max(phase.gap_us, after - before)
    return dict(phases)


def percentile(sorted_values: list[int], share: float) -> int:
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))] if sorted_values else 0


def totals(history: History) -> dict[str, int]:
    partitions = history.partitions.values()
    sent = sum(sum(one.sent.values()) for one in partitions)
    acknowledged = sum(len(one.acknowledged) + len(one.acknowledged_somewhere) for one in partitions)
    failed = sum(len(one.failed) for one in partitions)
    read = sum(
        run.length
        for one in partitions
        for events in one.readers.values()
        for event in events
        if not isinstance(event, Assigned)
        for run in event
    )
    return {
        "sent": sent,
        "acknowledged": acknowledged,
        "certainly failed": failed,
        "unknown": sent - acknowledged - failed,
        "read": read,
        "asked for the end": sum(len(one.ends) for one in partitions),
    }


def faults_of(history: History) -> Counter[str]:
    """Returns how often each kind of fault was injected."""
    return Counter(mark.name for mark in history.marks if mark.kind == "fault" and mark.detail.startswith("begin"))


def render(history: History, findings: Findings, title: str, workloads: Mapping[str, int] | None = None) -> str:
    """Returns the table. `workloads` has the counts of those beside plain writers and readers."""
    lines = [title, ""]
    lines += [f"  {name:<44}{count:>12,}" for name, count in (totals(history) | dict(workloads or {})).items()]
    faults = faults_of(history)
    lines += ["", f"  {sum(faults.values())} faults: " + ", ".join(f"{name} {faults[name]}" for name in sorted(faults))]
    lines += [
        "",
        f"  {'phase':<24}{'s':>7}{'writes':>9}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}{'gap s':>8}{'worst s':>9}",
    ]
    for name, phase in sorted(phases_of(history).items()):
        values = sorted(phase.latencies_us)
        cells = "".join(f"{percentile(values, share) / 1000:>9.1f}" for share in (0.5, 0.99, 1.0))
        gaps = f"{phase.gap_us / 1e6:>8.1f}{phase.partition_gap_us / 1e6:>9.1f}"
        lines.append(f"  {name:<24}{phase.seconds:>7.0f}{len(values):>9,}{cells}{gaps}")
    lines += ["", "  gap: the longest time without an acknowledged write; worst: in one partition", ""]
    lines += ["  anomalies: none"] if findings.ok else ["  ANOMALIES", *(f"  {line}" for line in findings.lines())]
    return "\n".join(lines)

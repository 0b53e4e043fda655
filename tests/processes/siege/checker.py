"""Checks a history as Jepsen's Kafka workload does. Pure: a history in, findings out.

The order of a partition is built from all acknowledgements and reads. A value with an unknown outcome may be in it or
not. The final reader, after all faults, decides what is still present.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from tests.processes.siege.findings import Anomaly, Findings
from tests.processes.siege.history import Assigned, History, PartitionHistory, Run
from tests.processes.siege.values import Value, name_of, sequence_of, source_of


def check(history: History) -> Findings:
    findings = Findings()
    for sentence in history.broken:
        findings.add(Anomaly.BROKEN, sentence)
    for name, partition in sorted(history.partitions.items()):
        _PartitionCheck(name, partition, history.unordered_sources, findings).run()
    return findings


class _PartitionCheck:
    def __init__(self, name: str, partition: PartitionHistory, unordered: set[int], findings: Findings) -> None:
        self._name = name
        self._partition = partition
        self._unordered = unordered
        self._findings = findings
        self._order: dict[int, Value] = {}
        """Values by offset, as first observed."""
        self._places: dict[Value, int] = {}

    def run(self) -> None:
        self._collect()
        self._check_order()
        self._check_origins()
        self._check_presence()
        for reader in self._partition.readers:
            self._check_reader(reader)
        self._check_ends()
        for offset in self._partition.changed:
            self._found(Anomaly.CHANGED, f"the value at {offset} is not what was sent")

    def _found(self, anomaly: Anomaly, sentence: str) -> None:
        self._findings.add(anomaly, f"{self._name}: {sentence}")

    # Order of the log

    def _collect(self) -> None:
        for one in self._partition.acknowledged:
            self._see(one.offset, one.value, "acknowledged")
        for reader, events in self._partition.readers.items():
            for event in events:
                if not isinstance(event, Assigned):
                    for run in event:
                        for step in range(run.length):
                            self._see(run.offset + step, run.value + step, reader)

    def _see(self, offset: int, value: Value, by: str) -> None:
        first = self._order.setdefault(offset, value)
        if first != value:
            self._found(Anomaly.INCONSISTENT, f"offset {offset} has {name_of(first)} and, by {by}, {name_of(value)}")
        place = self._places.setdefault(value, offset)
        if place != offset:
            self._found(Anomaly.DUPLICATE, f"{name_of(value)} is at {place} and, by {by}, at {offset}")

    def _check_order(self) -> None:
        last: dict[int, Value] = {}
        for offset in sorted(self._order):
            value = self._order[offset]
            source = source_of(value)
            if source in self._unordered:
                continue
            before = last.get(source, -1)
            if value < before:
                self._found(
                    Anomaly.REORDERED,
                    f"{name_of(value)} at {offset} is after {name_of(before)} at {self._places[before]}",
                )
            last[source] = max(value, before)

    def _check_origins(self) -> None:
        for value, offset in self._places.items():
            if sequence_of(value) >= self._partition.sent.get(source_of(value), 0):
                self._found(Anomaly.NEVER_SENT, f"{name_of(value)} at {offset}")
        for value, error in self._partition.failed.items():
            if value in self._places:
                self._found(Anomaly.ABORTED, f"{name_of(value)} failed with {error} and is at {self._places[value]}")

    # Presence

    def _check_presence(self) -> None:
        if not self._partition.finals:
            self._check_presence_without_end()
        for reader, end in self._partition.finals.items():
            present = {run.value + step for run in _runs(self._partition, reader) for step in range(run.length)}
            for one in self._partition.acknowledged_somewhere:
                if one.value not in present:
                    self._found(Anomaly.LOST, f"{name_of(one.value)}, acknowledged without an offset")
            for value, offset in self._places.items():
                if value in present:
                    continue
                if offset < end:
                    self._found(Anomaly.LOST, f"{name_of(value)}, which was at {offset}; the log goes on to {end}")
                else:
                    self._found(Anomaly.UNSEEN, f"{name_of(value)}, which was at {offset}; the log ends at {end}")

    def _check_presence_without_end(self) -> None:
        """Checks an aborted run: reports values that nobody read although later offsets were read."""
        read: set[Value] = set()
        highest = -1
        for reader in self._partition.readers:
            for run in _runs(self._partition, reader):
                read.update(range(run.value, run.value + run.length))
                highest = max(highest, run.offset + run.length - 1)
        for one in self._partition.acknowledged:
            if one.offset < highest and one.value not in read:
                self._found(Anomaly.LOST, f"{name_of(one.value)} at {one.offset} was never read, {highest} was")

    # Reads

    def _check_reader(self, reader: str) -> None:
        """Checks that each poll continues where the previous one ended, unless the reader changed its position."""
        position: int | None = None
        for event in self._partition.readers[reader]:
            if isinstance(event, Assigned):
                position = event.offset
                continue
            for run in event:
                if position is not None:
                    self._check_step(reader, position, run.offset)
                position = run.offset + run.length

    def _check_step(self, reader: str, position: int, offset: int) -> None:
        if offset < position:
            self._found(Anomaly.BACKWARDS, f"{reader} was at {position} and got {offset}")
        for skipped in range(position, offset):
            if skipped in self._order:
                value = name_of(self._order[skipped])
                self._found(Anomaly.SKIPPED, f"{reader} was at {position} and got {offset}, not {value} at {skipped}")

    def _check_ends(self) -> None:
        """Checks that each reported log end is above everything acknowledged before the request."""
        acknowledged = sorted(self._partition.acknowledged)
        times = [one.at_us for one in acknowledged]
        highest: list[int] = []
        for one in acknowledged:
            highest.append(max(one.offset, highest[-1] if highest else -1))
        for end in self._partition.ends:
            count = bisect_left(times, end.asked_us)
            if count and highest[count - 1] >= end.offset:
                self._found(
                    Anomaly.STALE,
                    f"{end.reader} was told {end.offset}, after {highest[count - 1]} had been acknowledged",
                )


def _runs(partition: PartitionHistory, reader: str) -> Iterator[Run]:
    for event in partition.readers[reader]:
        if not isinstance(event, Assigned):
            yield from event

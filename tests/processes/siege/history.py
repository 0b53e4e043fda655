"""The history that clients and the nemesis record: lines of tab-separated fields, one file per process.

    time  source   -          source client in-order(1/0)
    time  send     partition  source sequence count         this many values are handed to the client
    time  ok       partition  source sequence offset us     acknowledged at an offset (-1: unknown), after this time
    time  fail     partition  source sequence error         certainly not written
    time  unknown  partition  source sequence error         may be written or not
    time  assign   partition  offset                        a reader continues from there
    time  end      partition  offset asked                  the log end, with the time of the request
    time  poll     partition  offset:source:sequence:count  ... a reader got these, in this order
    time  changed  partition  offset                        a value that differs from what was written
    time  refused  -          error                         a read was rejected
    time  final    partition  end                           after the last fault: everything up to here follows as polls
    time  phase    -          name
    time  fault    -          kind begin|end detail
    time  broken   -          sentence                      a finding outside the history

Times are in microseconds of one monotonic clock.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.processes.siege.values import Value, value_id

FLUSH_S = 0.5
SUFFIX = ".history"


def now_us() -> int:
    return time.monotonic_ns() // 1000


class Recorder:
    """Writes the lines of one process. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="ascii", errors="replace")
        self._lock = threading.Lock()
        self._flushed_s = 0.0

    def write(self, kind: str, partition: str = "-", *fields: object, at_us: int | None = None) -> None:
        line = "\t".join(map(str, (at_us or now_us(), kind, partition, *fields)))
        with self._lock:
            if self._file.closed:
                return
            self._file.write(line + "\n")
            if (now_s := time.monotonic()) - self._flushed_s > FLUSH_S:
                self._flushed_s = now_s
                self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()


class Run(NamedTuple):
    """Consecutive values at consecutive offsets."""

    offset: int
    value: Value
    length: int


def runs_of(records: Iterable[tuple[int, Value]]) -> list[Run]:
    runs: list[Run] = []
    for offset, value in records:
        last = runs[-1] if runs else None
        if last and offset == last.offset + last.length and value == last.value + last.length:
            runs[-1] = Run(last.offset, last.value, last.length + 1)
        else:
            runs.append(Run(offset, value, 1))
    return runs


class Acknowledged(NamedTuple):
    at_us: int
    value: Value
    offset: int
    latency_us: int


class Ended(NamedTuple):
    """A reply with the log end, with the times of request and reply."""

    asked_us: int
    offset: int
    reader: str


class Assigned(NamedTuple):
    offset: int


Polled = tuple[Run, ...]
ReaderEvent = Assigned | Polled


@dataclass(slots=True)
class PartitionHistory:
    sent: dict[int, int] = field(default_factory=dict)
    """The number of values sent, by source."""
    acknowledged: list[Acknowledged] = field(default_factory=list)
    acknowledged_somewhere: list[Acknowledged] = field(default_factory=list)
    """Acknowledgements without an offset."""
    failed: dict[Value, str] = field(default_factory=dict)
    unknown: dict[Value, str] = field(default_factory=dict)
    readers: defaultdict[str, list[ReaderEvent]] = field(default_factory=lambda: defaultdict(list))
    ends: list[Ended] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    finals: dict[str, int] = field(default_factory=dict)
    """The log end that each reader found when every fault was over."""


class Mark(NamedTuple):
    """A phase, or a fault that begins or ends."""

    at_us: int
    kind: str
    name: str
    detail: str


@dataclass(slots=True)
class History:
    partitions: defaultdict[str, PartitionHistory] = field(default_factory=lambda: defaultdict(PartitionHistory))
    unordered_sources: set[int] = field(default_factory=set)
    clients: dict[int, str] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """The errors that readers got."""

    def add(self, process: str, lines: Iterable[str]) -> None:
        """Adds the lines of one process, except a last line cut off by its death."""
        for line in lines:
            if line.endswith("\n"):
                self._add_line(process, line.rstrip("\n").split("\t"))

    def _add_line(self, process: str, fields: Sequence[str]) -> None:
        at_us, kind, name, rest = int(fields[0]), fields[1], fields[2], fields[3:]
        if kind in ("phase", "fault"):
            self.marks.append(Mark(at_us, kind, rest[0], " ".join(rest[1:])))
        elif kind == "broken":
            self.broken.append(rest[0])
        elif kind == "refused":
            self.refused.append(rest[0])
        elif kind == "source":
            self.clients[int(rest[0])] = rest[1]
            if rest[2] == "0":
                self.unordered_sources.add(int(rest[0]))
        elif kind in ("send", "ok", "fail", "unknown"):
            _add_write(self.partitions[name], at_us, kind, rest)
        else:
            _add_read(self.partitions[name], process, kind, rest)


def _add_write(partition: PartitionHistory, at_us: int, kind: str, rest: Sequence[str]) -> None:
    source, sequence = int(rest[0]), int(rest[1])
    value = value_id(source, sequence)
    if kind == "send":
        partition.sent[source] = max(partition.sent.get(source, 0), sequence + int(rest[2]))
    elif kind == "ok":
        one = Acknowledged(at_us, value, int(rest[2]), int(rest[3]))
        (partition.acknowledged if one.offset >= 0 else partition.acknowledged_somewhere).append(one)
    elif kind == "fail":
        partition.failed[value] = rest[2]
    else:
        partition.unknown[value] = rest[2]


def _add_read(partition: PartitionHistory, process: str, kind: str, rest: Sequence[str]) -> None:
    if kind == "poll":
        partition.readers[process].append(tuple(map(_parse_run, rest)))
    elif kind == "assign":
        partition.readers[process].append(Assigned(int(rest[0])))
    elif kind == "end":
        partition.ends.append(Ended(int(rest[1]), int(rest[0]), process))
    elif kind == "changed":
        partition.changed.append(int(rest[0]))
    elif kind == "final":
        partition.finals[process] = int(rest[0])
    else:
        raise ValueError(f"a history has no lines of the kind {kind}")


def _parse_run(text: str) -> Run:
    offset, source, sequence, count = map(int, text.split(":"))
    return Run(offset, value_id(source, sequence), count)


def read_history(directory: Path) -> History:
    history = History()
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        with path.open(encoding="ascii") as lines:
            history.add(path.stem, lines)
    history.marks.sort()
    return history

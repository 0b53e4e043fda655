"""The parameters and the reports of the drivers. Times are of the monotonic clock, which all processes share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.bench.suite.histogram import Histogram
from ottla.bench.suite.settings import Configuration, count, number

FLUSH_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 60.0
BUFFER_BYTES = 32 << 20
"""The size of a producer's buffer, small enough that its last flush is short."""
LATENCY_EVERY = 50
"""When records are written as fast as possible, one in this many is timed. At a rate or one by one, all are."""


class LoadFailedError(Exception):
    """A driver could not run its load."""


@dataclass(frozen=True, slots=True)
class ProducerLoad:
    """The load of one producer."""

    bootstrap: str
    topic: str
    configuration: Configuration
    client: int
    """The number of the client: 0, 1, ..."""
    warm_up_s: float
    start_at_ns: int
    """When all clients begin."""
    libraries: str = ""
    """The directory of Kafka's jars, for the Java tool."""

    @property
    def rate(self) -> float:
        """This client's share of the rate. 0 means as fast as possible."""
        return number(self.configuration, "producer.rate") / count(self.configuration, "producer.clients")

    @property
    def records(self) -> int:
        """The number of records to write; 0 if the load is limited by time."""
        return count(self.configuration, "producer.records")

    @property
    def is_sync(self) -> bool:
        """True if each record waits for the acknowledgement of the previous one."""
        return self.configuration["producer.mode"] == "sync"

    @property
    def measured_from_ns(self) -> int:
        """When the warm-up ends and the measurement begins."""
        return self.start_at_ns + int(self.warm_up_s * 1e9)

    def phases(self) -> tuple[Phase, Phase]:
        """Returns the warm-up and the measured phase."""
        warm_up = Phase(self.rate, duration_s=self.warm_up_s)
        if self.records:
            return warm_up, Phase(self.rate, records=self.records)
        return warm_up, Phase(self.rate, duration_s=number(self.configuration, "producer.duration_s"))


class Phase(NamedTuple):
    """How long to write, by time or by count."""

    rate: float
    duration_s: float = 0.0
    records: int = 0

    def deadline_ns(self, begin_ns: int) -> int:
        """Returns when a phase that began at this time ends; never, if it ends by count."""
        return (1 << 62) if self.records else begin_ns + int(self.duration_s * 1e9)

    @property
    def records_max(self) -> int:
        """The number of records after which the phase ends; practically unlimited if it ends by time."""
        return self.records or (1 << 62)

    def due_ns(self, begin_ns: int, at: int) -> int:
        """Returns when the record at this index is due, whatever happens to the earlier ones."""
        return begin_ns + int(at * 1e9 / self.rate)

    def due_count(self, begin_ns: int, now_ns: int) -> int:
        """Returns how many records are due by now."""
        found = int((now_ns - begin_ns) * self.rate / 1e9) + 2
        while found and self.due_ns(begin_ns, found - 1) > now_ns:
            found -= 1
        return found

    def offered(self) -> int:
        """Returns how many records are due in total, at a rate."""
        return self.records or int(self.rate * self.duration_s)


@dataclass(slots=True)
class ProducerResult:
    """Results of the measured time, except for `sent_in_all`."""

    records: int = 0
    value_bytes: int = 0
    begin_ns: int = 0
    end_ns: int = 0
    sent_in_all: int = 0
    """Includes the warm-up. So many records must be in the log."""
    offered: int = 0
    has_rate: bool = False
    latencies: Histogram = field(default_factory=Histogram)
    percentiles_us: dict[str, float] = field(default_factory=dict)
    """Set by a tool that reports percentiles only."""
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ConsumerLoad:
    """The load of one consumer."""

    bootstrap: str
    topic: str
    configuration: Configuration
    offsets: Mapping[int, int]
    """The start offset of each partition."""
    start_at_ns: int
    ends: Mapping[int, int] | None
    """The end offset of each partition; None if `ends_file` will have it."""
    ends_file: str = ""
    measured_from_ns: int = 0
    libraries: str = ""


@dataclass(slots=True)
class ConsumerResult:
    """The results of one consumer."""

    records: int = 0
    value_bytes: int = 0
    begin_ns: int = 0
    end_ns: int = 0
    latencies: Histogram = field(default_factory=Histogram)
    history: list[tuple[int, int, int]] = field(default_factory=list)
    """Times, with the number of records and of value bytes read by then."""

    def note(self, now_ns: int, records: int, value_bytes: int) -> None:
        """Records that this many more records were read by now."""
        self.records += records
        self.value_bytes += value_bytes
        self.end_ns = now_ns
        self.history.append((now_ns, self.records, self.value_bytes))

    def since(self, begin_ns: int) -> ConsumerResult:
        """Returns the results after a moment."""
        earlier = [each for each in self.history if each[0] < begin_ns]
        _, records, value_bytes = earlier[-1] if earlier else (0, 0, 0)
        left = (self.records - records, self.value_bytes - value_bytes)
        return ConsumerResult(*left, max(begin_ns, self.begin_ns), self.end_ns, self.latencies)


def wait_until(moment_ns: int) -> int:
    """Sleeps until a moment and returns the time then, which is later if the moment has passed already."""
    left_ns = moment_ns - time.monotonic_ns()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)
    return time.monotonic_ns()


def mean_bytes(values: Sequence[bytes]) -> float:
    """Returns the mean length of the values, of which there must be one."""
    return sum(map(len, values)) / len(values)

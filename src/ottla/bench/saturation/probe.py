"""The probe: a client with its own connections that measures how long others wait while the cluster is loaded.

It runs in a separate process. For each broker, one connection sends ApiVersions and Metadata in turn every 5 ms. For
each partition of the probe's topic, one connection to its leader writes one small record with acks=all every 20 ms.

A connection has one request in flight. If a reply is late, the requests that became due meanwhile are counted as if
they had been sent, so that a stall shows in all percentiles (no coordinated omission). They are not sent later:
otherwise a reply that takes slightly longer than the interval would delay every later request further. If the process
itself wakes up late because the machine is busy, the delay is reported as `late_max_ms`.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle

from ottla.bench.calls import Caller
from ottla.bench.frames import CLIENT_ID, framed, prepare_batch, produce_error_at, produce_frame
from ottla.bench.saturation.rendezvous import Rendezvous
from ottla.bench.suite.histogram import Histogram
from ottla.net.apis import API_VERSIONS, METADATA, ClientApi, build
from ottla.protocol.wire.headers import request_header
from ottla.protocol.wire.schema import encode, request_type

REQUEST_EVERY_S = 0.005
PRODUCE_EVERY_S = 0.02
REPLY_TIMEOUT_S = 30.0
RECORD_BYTES = 64
RECONNECT_S = 0.1
LOOK_S = 0.02
PRIORITY = -10

Address = tuple[str, int]


@dataclass(slots=True)
class WaitTimes:
    """The waits of the requests of one kind."""

    latencies: Histogram = field(default_factory=Histogram)
    late_max_us: int = 0
    errors: int = 0
    """Lost connections, timeouts, and replies with an error."""

    def merge(self, other: WaitTimes) -> None:
        """Adds the waits and errors of another probe."""
        self.latencies.merge(other.latencies)
        self.late_max_us = max(self.late_max_us, other.late_max_us)
        self.errors += other.errors


@dataclass(slots=True)
class ProbeResult:
    """The results of the probe."""

    requests: WaitTimes = field(default_factory=WaitTimes)
    produces: WaitTimes = field(default_factory=WaitTimes)


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """The parameters of the probe."""

    brokers: Sequence[Address]
    topic: str
    leaders: Mapping[int, Address]
    """The address of each partition's leader."""
    timestamp_ms: int
    meeting: Rendezvous
    name: str = "probe"


class Pace:
    """Schedules requests, in seconds of one clock. Pure."""

    def __init__(self, begin: float, every_s: float) -> None:
        self.due = begin
        self._interval = every_s

    def late_s(self, now: float) -> float:
        """Returns how late a request is sent because of this process."""
        return max(0.0, now - self.due)

    def replied(self, sent: float, now: float) -> list[float]:
        """Returns the latencies to count: of the request, and of those that became due while it was in flight."""
        waited_s = now - sent
        missed = range(1, int(waited_s / self._interval) + 1)
        self.due = max(self.due + self._interval, now)
        return [waited_s, *(waited_s - each * self._interval for each in missed)]


def probe(probing: ProbeSettings) -> ProbeResult:
    """Measures from the start of the row until its end."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    sys.setswitchinterval(0.0005)
    found = ProbeResult()
    ended = threading.Event()
    lines = _lines(probing, found, ended)
    for line in lines:
        line.connect()
    start_at = probing.meeting.arrive(probing.name)
    for line in lines:
        line.begin(start_at)
    while not probing.meeting.has_ended:
        time.sleep(LOOK_S)
    ended.set()
    for line in lines:
        line.join(REPLY_TIMEOUT_S + 1)
        line.total.merge(line.waits)
    return found


def _lines(probing: ProbeSettings, found: ProbeResult, ended: threading.Event) -> list[_Line]:
    control = [_frame(API_VERSIONS, _API_VERSIONS), _frame(METADATA, _metadata(probing.topic))]
    batch = prepare_batch(RECORD_BYTES, RECORD_BYTES + 200, probing.timestamp_ms)
    error_at = produce_error_at(probing.topic)
    lines = [
        _Line(address, control, REQUEST_EVERY_S, lambda _: True, found.requests, ended) for address in probing.brokers
    ]
    for partition, address in probing.leaders.items():
        frame = produce_frame(probing.topic, batch, partition)
        is_good = functools.partial(_is_zero_at, error_at)
        lines.append(_Line(address, [frame], PRODUCE_EVERY_S, is_good, found.produces, ended))
    return lines


def _is_zero_at(at: int, reply: bytes) -> bool:
    return reply[at] == 0


_API_VERSIONS = {
    "client_software_name": "ottla-bench",
    "client_software_version": "1",
    "cluster_id": None,
    "node_id": -1,
}


def _metadata(topic: str) -> dict[str, object]:
    return {
        "topics": [{"topic_id": None, "name": topic}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }


def _frame(api: ClientApi, body: Mapping[str, object]) -> bytes:
    version = min(api.versions[1], 3) if api is API_VERSIONS else api.versions[1]
    request = encode(build(request_type(api.key, version), body))
    return framed(request_header(api.key, version, 1, CLIENT_ID), request)


class _Line(threading.Thread):
    """One connection, which sends its requests in turn."""

    def __init__(
        self,
        address: Address,
        frames: Sequence[bytes],
        every_s: float,
        is_good: Callable[[bytes], bool],
        total: WaitTimes,
        ended: threading.Event,
    ) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._frames = cycle(frames)
        self._every_s = every_s
        self._pace = Pace(0.0, every_s)
        self._caller: Caller | None = None
        self._is_good = is_good
        self._ended = ended
        self.total = total
        self.waits = WaitTimes()

    def connect(self) -> None:
        """Connects and exchanges each request once. Raises OSError if the broker does not answer."""
        self._caller = self._new_caller()
        for _ in range(2):
            self._caller.exchange(next(self._frames))

    def begin(self, start_at: float) -> None:
        self._pace = Pace(start_at, self._every_s)
        self.start()

    def _new_caller(self) -> Caller:
        return Caller(self._address[1], self._address[0], REPLY_TIMEOUT_S)

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                with self._caller or self._new_caller() as caller:
                    self._caller = None
                    self._exchange(caller)
            except OSError:
                self.waits.errors += 1
                self._ended.wait(RECONNECT_S)

    def _exchange(self, caller: Caller) -> None:
        pace, waits = self._pace, self.waits
        while not self._ended.is_set():
            if (left_s := pace.due - time.monotonic()) > 0:
                time.sleep(left_s)
            sent = time.monotonic()
            waits.late_max_us = max(waits.late_max_us, int(pace.late_s(sent) * 1e6))
            try:
                reply = caller.exchange(next(self._frames))
            finally:
                for latency_s in pace.replied(sent, time.monotonic()):
                    waits.latencies.add(int(latency_s * 1e6))
            waits.errors += not self._is_good(reply)

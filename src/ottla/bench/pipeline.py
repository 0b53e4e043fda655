"""The load driver: keeps a fixed number of prepared requests in flight on one or more connections, and parses nothing.

All requests have the same size, and so have all replies, so replies are counted by their bytes. The same loop drives a
broker and the floor, so that a share of the floor compares like with like. A few bytes of each reply (its size field,
its error code) are compared with their expected values, so that rejected requests do not count as throughput.

This is a closed loop: the next request leaves when an earlier one is answered. Its latencies show how long requests
took at the rate that the server allowed, not how long they would take at a fixed rate (coordinated omission).
"""

from __future__ import annotations

import gc
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from ottla.bench.processes import cpu_seconds_of_all
from ottla.bench.quotients import rate

RECEIVE_BYTES = 1 << 20
SILENCE_S = 20.0


class BadReplyError(Exception):
    """A server replied with something other than success."""


@dataclass(frozen=True, slots=True)
class Load:
    """The requests to send, and the server. `requests` are frames of `request_bytes` each, sent in a cycle."""

    port: int
    requests: bytes
    request_bytes: int
    reply_bytes: int
    inflight: int
    """The number of requests in flight on all connections together."""
    warm_up_s: float
    seconds: float
    server_pids: Sequence[int]
    """The processes whose CPU time counts."""
    checks: Sequence[tuple[int, int]] = ()
    """Pairs of a position and the byte that each reply must have there."""
    connections: int = 1


@dataclass(slots=True)
class LoadResult:
    """Results of the measured time only, except for `requests_sent`."""

    requests: int = 0
    requests_sent: int = 0
    """Includes the requests of the warm-up and of the end."""
    seconds: float = 0.0
    server_cpu_s: float = 0.0
    driver_cpu_s: float = 0.0
    latencies: dict[int, int] = field(default_factory=dict)

    @property
    def requests_per_s(self) -> float:
        """The rate over the measured time."""
        return rate(self.requests, self.seconds)


def drive(load: Load) -> LoadResult:
    """Runs a load. All requests are answered when this returns."""
    if len(load.requests) % load.request_bytes:
        raise ValueError("the requests are not all of one size")
    with ExitStack() as stack:
        pipelines = [Pipeline(stack.enter_context(_connected(load.port)), load) for _ in range(load.connections)]
        gc.disable()
        try:
            return LoadDriver(load, pipelines).run()
        finally:
            gc.enable()


def _connected(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=SILENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class LoadDriver:
    """Drives all connections from one thread. A single connection blocks in its own read, which saves a system call."""

    def __init__(self, load: Load, pipelines: Sequence[Pipeline]) -> None:
        self._load = load
        self._pipelines = pipelines
        self._poll = select.epoll()
        self._by_descriptor = {pipeline.descriptor: pipeline for pipeline in pipelines}
        for descriptor in self._by_descriptor:
            self._poll.register(descriptor, select.EPOLLIN)

    def run(self) -> LoadResult:
        """Warms up, measures, then waits for the replies that are still due."""
        load, measured = self._load, LoadResult()
        for pipeline in self._pipelines:
            pipeline.send(load.inflight // load.connections)
        self._turn_until(time.perf_counter() + load.warm_up_s, {})
        server_cpu, driver_cpu = cpu_seconds_of_all(load.server_pids), time.process_time()
        begin = time.perf_counter()
        measured.requests = self._turn_until(begin + load.seconds, measured.latencies)
        measured.seconds = time.perf_counter() - begin
        measured.driver_cpu_s = time.process_time() - driver_cpu
        measured.server_cpu_s = cpu_seconds_of_all(load.server_pids) - server_cpu
        for pipeline in self._pipelines:
            pipeline.finish()
        self._poll.close()
        measured.requests_sent = sum(pipeline.requests_sent for pipeline in self._pipelines)
        return measured

    def _turn_until(self, end: float, latencies: dict[int, int]) -> int:
        """Returns how many requests were answered: at least one, however slow the server or busy the machine is."""
        clock, requests = time.perf_counter, 0
        while not requests or clock() < end:
            for pipeline in self._readable():
                requests += pipeline.take_turn(latencies)
        return requests

    def _readable(self) -> Sequence[Pipeline]:
        if len(self._pipelines) == 1:
            return self._pipelines
        ready = self._poll.poll(SILENCE_S)
        if not ready:
            raise TimeoutError(f"no connection received a response for {SILENCE_S:.0f} s")
        return [self._by_descriptor[descriptor] for descriptor, _ in ready]


class Pipeline:
    """One connection with requests in flight."""

    def __init__(self, connection: socket.socket, load: Load) -> None:
        self._connection = connection
        self._load = load
        self._cycle_bytes = len(load.requests)
        repeated = load.requests * (1 + load.inflight * load.request_bytes // self._cycle_bytes)
        self._requests = memoryview(load.requests + repeated)
        """Long enough that any window of requests is one slice, wherever it begins in the cycle."""
        self._at = 0
        self._under_way: deque[tuple[float, int]] = deque()
        """Pairs of the time of sending and the number of requests, oldest first."""
        self._received = bytearray(RECEIVE_BYTES)
        self._stream_at = 0
        """How many bytes of the last reply have arrived."""
        self.requests_sent = 0

    @property
    def descriptor(self) -> int:
        """The socket's file descriptor, for polling."""
        return self._connection.fileno()

    def take_turn(self, latencies: dict[int, int]) -> int:
        """Reads the available replies and sends as many requests. Returns their number."""
        replies = self._receive()
        if replies:
            self._note(latencies, time.perf_counter(), replies)
            self.send(replies)
        return replies

    def finish(self) -> None:
        """Reads the replies of all requests in flight."""
        while self._under_way:
            self._note({}, time.perf_counter(), self._receive())

    def send(self, count: int) -> None:
        """Sends the next `count` prepared requests in one system call and notes the time."""
        at, size = self._at, count * self._load.request_bytes
        self._at = (at + size) % self._cycle_bytes
        self._under_way.append((time.perf_counter(), count))
        self.requests_sent += count
        self._connection.sendall(self._requests[at : at + size])

    def _receive(self) -> int:
        """Returns how many replies were completed."""
        received, reply_bytes, at = self._received, self._load.reply_bytes, self._stream_at
        byte_count = self._connection.recv_into(received)
        if not byte_count:
            raise ConnectionError("the server closed the connection")
        for position, expected in self._load.checks:
            found = received[(position - at) % reply_bytes : byte_count : reply_bytes]
            if found.count(expected) != len(found):
                raise BadReplyError(f"byte {position} of a reply is not {expected}: the server refused a request")
        replies, self._stream_at = divmod(at + byte_count, reply_bytes)
        return replies

    def _note(self, latencies: dict[int, int], now: float, replies: int) -> None:
        """Records latencies. Replies arrive in request order, so they answer the oldest requests in flight."""
        under_way = self._under_way
        while replies:
            sent_at, count = under_way.popleft()
            answered = min(count, replies)
            if answered < count:
                under_way.appendleft((sent_at, count - answered))
            replies -= answered
            microseconds = int((now - sent_at) * 1e6)
            latencies[microseconds] = latencies.get(microseconds, 0) + answered

"""The background queue of the simulated disk: performs requests in order, one for each turn of the virtual loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ottla.ports import Clock, Completion, DataFile, ReadOnlyBuffer

T = TypeVar("T")


class _Power(Protocol):
    off: bool


@dataclass(slots=True)
class Request:
    """A write, or a sync if `data` is None. `data` is a copy made on acceptance; `buffers` are the caller's."""

    file: DataFile
    offset: int
    buffers: Sequence[ReadOnlyBuffer]
    data: bytes | None
    done: Completion


class SimDiskQueue:
    """Implements `ports.DiskQueue`. A request takes effect when it is performed, right before its `done`.

    `latency_ms` and `bytes_ms` simulate a slow disk. `stall()` holds everything until `release()`.
    """

    def __init__(self, clock: Clock, power: _Power, *, ends_with_failure: bool = False) -> None:
        self._ends_with_failure = ends_with_failure
        self._failure: OSError | None = None
        self._clock = clock
        self._power = power
        self._requests: deque[Request] = deque()
        self._jobs: deque[Callable[[], None]] = deque()
        self._scheduled = False
        self._jobs_scheduled = False
        self._stalled = False
        self._closed = False
        self.latency_ms = 0.0
        self.bytes_ms: float | None = None
        """Bytes written in a millisecond; None means unlimited."""

    def write(self, file: DataFile, offset: int, data: Sequence[ReadOnlyBuffer], done: Completion) -> None:
        self._accept(Request(file, offset, data, b"".join(data), done))

    def sync(self, file: DataFile, done: Completion) -> None:
        self._accept(Request(file, 0, (), None, done))

    def call(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self._demand_open()

        def run() -> None:
            try:
                result = job()
            except Exception as error:
                done(None, error)
            else:
                done(result, None)

        self._jobs.append(run)
        self._schedule()

    def pending(self) -> int:
        return len(self._requests) + len(self._jobs)

    def pending_requests(self) -> list[Request]:
        """Returns the accepted writes and syncs that have not been performed, except those that will fail."""
        return [request for request in self._requests if request.data is None or self._failure is None]

    def close(self) -> None:
        """Performs everything that was accepted, even if stalled."""
        self._closed = True
        while not self._power.off and (self._requests or self._jobs):
            if self._requests:
                self._perform()
            if self._jobs:
                self._jobs.popleft()()

    def stall(self) -> None:
        """Holds accepted requests and jobs until `release` or `close`."""
        self._stalled = True

    def release(self, count: int | None = None) -> None:
        """Resumes the queue. With a count, performs that many held writes and syncs and stays stalled."""
        if count is None:
            self._stalled = False
            self._schedule()
            return
        for _ in range(min(count, len(self._requests))):
            self._perform()

    def _accept(self, request: Request) -> None:
        self._demand_open()
        self._requests.append(request)
        self._schedule()

    def _demand_open(self) -> None:
        if self._closed:
            raise RuntimeError("the disk queue is closed")

    def _schedule(self) -> None:
        if self._stalled or self._power.off:
            return
        if self._requests and not self._scheduled:
            self._scheduled = True
            if delay_ms := self._delay_ms(self._requests[0]):
                self._clock.call_later(delay_ms, self._next_request)
            else:
                self._clock.call_soon(self._next_request)
        if self._jobs and not self._jobs_scheduled:
            self._jobs_scheduled = True
            self._clock.call_soon(self._next_job)

    def _delay_ms(self, request: Request) -> float:
        if self.bytes_ms is None or request.data is None:
            return self.latency_ms
        return self.latency_ms + len(request.data) / self.bytes_ms

    def _next_request(self) -> None:
        self._scheduled = False
        if not self._stalled and not self._power.off and self._requests:
            self._perform()

    def _next_job(self) -> None:
        self._jobs_scheduled = False
        if self._stalled or self._power.off or not self._jobs:
            return
        job = self._jobs.popleft()
        self._schedule()
        job()

    def _perform(self) -> None:
        request = self._requests.popleft()
        error: OSError | None = None
        try:
            if request.data is None:
                request.file.sync()
            else:
                self._demand_untouched(request)
                if self._failure is not None:
                    raise self._failure
                request.file.write_at(request.offset, [request.data])
        except OSError as failure:
            error = failure
            if self._ends_with_failure and request.data is not None:
                self._failure = failure
        self._schedule()
        request.done(error)

    def _demand_untouched(self, request: Request) -> None:
        if b"".join(request.buffers) != request.data:
            raise AssertionError(f"a buffer changed before its write to {request.file.path} was done")

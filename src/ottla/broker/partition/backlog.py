"""Throttles producers by the backlog: the bytes that a broker has appended as a leader and that its in-sync replicas
have not acknowledged yet.

A leader can append faster than its followers, or its own disk, can take the data. Without a bound the followers fall
behind until they leave the ISR, every pending request fails, and the clients send everything again. So producers wait
while the backlog is above a limit. Only their connections wait: nothing that shrinks the backlog (follower fetches,
reports of synced ends, journal writes) passes through here.

The limit follows the measured drain rate (`backlog_limit`). The rate is measured only while producers wait, so an
unsaturated broker pays for a few additions only.

A partition whose high watermark does not move at all (a follower has just died, or the ISR is below its minimum) counts
as stalled after `STALL_MS` and no longer holds back the producers of other partitions. Stalled partitions share a limit
of their own: a disk that pauses stalls all of its partitions at once, and a limit for each would admit far more than
the disk can catch up with. After `ABANDONED_MS` the follower is considered dead rather than slow, and the partition
holds back acks=all requests only, each partition up to the limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from ottla.broker.partition.backlog_limit import LAG_MS_MAX, BacklogLimit
from ottla.ports import Clock, Timer

STALL_MS = 1000.0
"""Time without progress after which a partition counts as stalled, or twice the latency of an acknowledgement if that
is longer: a slow disk is not a dead follower."""
ABANDONED_MS = 5000.0
RECHECK_MS = 20.0
"""How often waiting producers are rechecked even if nothing drains: the end of a stall or of slow segment writes
releases no bytes."""
NEVER = -1.0
ALL = -1
"""acks=all"""


class Waiter(Protocol):
    """A producer's connection or stream that waits for the backlog to drain."""

    def on_backlog_drained(self) -> None:
        """Called when the producer may continue."""
        ...


class ProducerConnection(Protocol):
    """The state of a connection that the backlog decides by."""

    @property
    def unacknowledged(self) -> int:
        """The number of produce requests of the connection that have no reply yet."""
        ...


class Backlog:
    """The backlog of one broker. All calls are on the event loop's thread."""

    __slots__ = (
        "_clock",
        "_is_disk_behind",
        "_limit",
        "_measured_ms",
        "_sample",
        "_timer",
        "_waiting",
        "_wake_is_due",
        "partitions",
        "size_bytes",
        "stalled",
        "stalled_bytes",
        "waits",
    )

    def __init__(
        self,
        clock: Clock,
        limit_bytes_max: int,
        is_disk_behind: Callable[[], bool] = lambda: False,
        lag_max_ms: Callable[[], float] = lambda: LAG_MS_MAX,
    ) -> None:
        self._clock = clock
        self._is_disk_behind = is_disk_behind
        self._limit = BacklogLimit(limit_bytes_max, lag_max_ms)
        self._measured_ms = 0.0
        self._sample: tuple[PartitionBacklog, int, float] | None = None
        """The append whose latency is measured: its partition, its end offset and its time."""
        self._waiting: dict[Waiter, None] = {}
        self._wake_is_due = False
        self._timer: Timer | None = None
        self.partitions: dict[PartitionBacklog, None] = {}
        """Partitions with a backlog."""
        self.size_bytes = 0
        """Backlog of all partitions that are not stalled."""
        self.stalled = 0
        """Number of stalled partitions, abandoned ones included."""
        self.stalled_bytes = 0
        """Backlog of the stalled partitions that are not abandoned."""
        self.waits = 0
        """How often a producer had to wait."""

    @property
    def limit_bytes(self) -> int:
        """The number of bytes above which producers are throttled."""
        return self._limit.size_bytes

    @property
    def stall_ms(self) -> float:
        """The time without progress after which a partition counts as stalled."""
        return min(max(STALL_MS, 2 * self._limit.latency_ms), ABANDONED_MS)

    @property
    def is_full(self) -> bool:
        """Whether the backlog is above its limit, or segment writes are behind."""
        return self.size_bytes > self._limit.size_bytes or self._is_disk_behind()

    @property
    def may_hold_back(self) -> bool:
        """Whether `holds_back` needs to be called at all."""
        return self.stalled > 0 or self.is_full

    def holds_back(self, partition: PartitionBacklog, acks: int, producing: ProducerConnection) -> bool:
        """Whether a request for this partition has to wait now.

        A producer with nothing in flight passes although the backlog is full: it waits for its own acknowledgement
        before it sends more, so it adds little, and its latency does not depend on its neighbours' pipelines. Nobody
        passes when segment writes are behind: the log would soon reject the records.
        """
        if partition.is_abandoned:
            return acks == ALL and partition.size_bytes > self._limit.size_bytes
        if partition.is_stalled:
            return self.stalled_bytes > self._limit.size_bytes
        if not self.is_full:
            return False
        if acks == ALL and not producing.unacknowledged and not self._is_disk_behind():
            return self.size_bytes > 2 * self._limit.size_bytes
        return True

    def wait(self, waiter: Waiter) -> None:
        """Calls the waiter once when it may try again. Waiters are served in order of arrival."""
        if not self._waiting:
            self._measured_ms = self._clock.monotonic_ms()
        self.waits += waiter not in self._waiting
        self._waiting[waiter] = None
        if self._timer is None:
            self._timer = self._clock.call_later(RECHECK_MS, self._recheck)

    def forget(self, waiter: Waiter) -> None:
        """Removes a waiter."""
        self._waiting.pop(waiter, None)

    def on_released(self, size_bytes: int) -> None:
        """Notes bytes that were acknowledged or never will be, and wakes waiters if there is room."""
        if self._waiting:
            self._measure(size_bytes)
            if not self._wake_is_due and not self.is_full:
                self._wake_is_due = True
                self._clock.call_soon(self._wake)

    def _measure(self, released_bytes: int = 0) -> None:
        now_ms = self._clock.monotonic_ms()
        self._limit.on_waited(now_ms - self._measured_ms, released_bytes)
        self._measured_ms = now_ms

    @property
    def wants_sample(self) -> bool:
        """Whether the latency of the next append is to be measured: producers have to wait, and none is measured."""
        return self._timer is not None and self._sample is None

    def start_sample(self, partition: PartitionBacklog, end_offset: int) -> None:
        """Measures how long the acknowledgement of this append takes."""
        self._sample = (partition, end_offset, self._clock.monotonic_ms())

    def end_sample(self, partition: PartitionBacklog, watermark: int) -> None:
        """Notes the latency of the measured append if the high watermark of its partition has passed it."""
        if self._sample is not None and self._sample[0] is partition and self._sample[1] <= watermark:
            self._limit.on_latency(self._clock.monotonic_ms() - self._sample[2])
            self._sample = None

    def drop_sample(self, partition: PartitionBacklog) -> None:
        """Forgets a measured append of the partition: nobody waits for it any more."""
        if self._sample is not None and self._sample[0] is partition:
            self._sample = None

    def _wake(self) -> None:
        """Wakes waiters in order while there is room. Each one adds to the backlog before the next is called, so a full
        backlog leaves the rest waiting. A waiter that has been called goes to the end of the queue."""
        self._wake_is_due = False
        for waiter in list(self._waiting):
            if self.is_full:
                return
            if waiter in self._waiting:
                del self._waiting[waiter]
                waiter.on_backlog_drained()

    def _recheck(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        now_ms = self._clock.monotonic_ms()
        changed = [each for each in self.partitions if each.note_time(now_ms)]
        self._measure()
        if changed:
            # Only the request knows which partition it is for, so every producer tries again.
            for waiter in list(self._waiting):
                self._waiting.pop(waiter, None)
                waiter.on_backlog_drained()
        elif not self.is_full:
            self._wake()
        if self._waiting and self._timer is None:
            self._timer = self._clock.call_later(RECHECK_MS, self._recheck)


class PartitionBacklog:
    """The part of the backlog that belongs to one partition."""

    __slots__ = ("_appended", "_backlog", "_moved_ms", "is_abandoned", "is_stalled", "size_bytes")

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._appended: deque[tuple[int, int]] = deque()
        """End offset and size of each unacknowledged append."""
        self._moved_ms = NEVER
        """When the high watermark was first seen at its current value; NEVER if it was not checked since it moved."""
        self.size_bytes = 0
        self.is_stalled = False
        self.is_abandoned = False

    def add(self, end_offset: int, size_bytes: int) -> None:
        """Adds an append to the backlog."""
        if not self._appended:
            self._backlog.partitions[self] = None
            self._moved_ms = NEVER
        self._appended.append((end_offset, size_bytes))
        self.size_bytes += size_bytes
        backlog = self._backlog
        self._count(size_bytes)
        if backlog.wants_sample:
            backlog.start_sample(self, end_offset)

    def release(self, watermark: int) -> None:
        """Removes everything below the high watermark, which all in-sync replicas have acknowledged."""
        appended = self._appended
        released_bytes = 0
        while appended and appended[0][0] <= watermark:
            released_bytes += appended.popleft()[1]
        if released_bytes:
            self._backlog.end_sample(self, watermark)
            self._remove(released_bytes)

    def clear(self) -> None:
        """Empties the backlog after a change of role or a failure of the log: no request waits for acknowledgements any
        more."""
        if self._appended:
            self._backlog.drop_sample(self)
            self._appended.clear()
            self._remove(self.size_bytes)

    def note_time(self, now_ms: float) -> bool:
        """Marks the partition as stalled or abandoned if its high watermark has not moved for too long. Returns whether
        that changed."""
        if self._moved_ms == NEVER:
            self._moved_ms = now_ms
        still_ms = now_ms - self._moved_ms
        if not self.is_stalled and still_ms >= self._backlog.stall_ms:
            self._backlog.stalled += 1
            self._move(is_stalled=True, is_abandoned=False)
            return True
        if not self.is_abandoned and still_ms >= ABANDONED_MS:
            self._move(is_stalled=True, is_abandoned=True)
            return True
        return False

    def _move(self, *, is_stalled: bool, is_abandoned: bool) -> None:
        """Counts the partition's backlog among that of live, stalled or abandoned partitions."""
        self._count(-self.size_bytes)
        self.is_stalled, self.is_abandoned = is_stalled, is_abandoned
        self._count(self.size_bytes)

    def _count(self, size_bytes: int) -> None:
        if not self.is_stalled:
            self._backlog.size_bytes += size_bytes
        elif not self.is_abandoned:
            self._backlog.stalled_bytes += size_bytes

    def _remove(self, released_bytes: int) -> None:
        backlog = self._backlog
        if self.is_stalled:
            backlog.stalled -= 1
            self._move(is_stalled=False, is_abandoned=False)
        self.size_bytes -= released_bytes
        backlog.size_bytes -= released_bytes
        self._moved_ms = NEVER
        if not self._appended:
            backlog.partitions.pop(self, None)
        backlog.on_released(released_bytes)

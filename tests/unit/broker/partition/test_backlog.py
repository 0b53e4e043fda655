"""The backlog of unacknowledged records: which producers wait, for how long, and in which order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ottla.broker.partition.backlog import (
    ABANDONED_MS,
    ALL,
    LEAST_SHARE,
    RECHECK_MS,
    STALL_MS,
    TARGET_MS,
    TARGET_MS_MAX,
    Backlog,
    PartitionBacklog,
)
from ottla.sim.clock import SimClock

LIMIT = 800
LIMIT_MAX = LIMIT * LEAST_SHARE


@dataclass
class Connection:
    unacknowledged: int = 1


@dataclass(eq=False)
class Waiter:
    """Appends one record of the given size when it is woken, and waits again if there is more to send."""

    bench: Bench
    name: str
    size: int = 0
    left: int = 1

    def on_backlog_drained(self) -> None:
        self.bench.woken.append(self.name)
        if self.size:
            self.bench.append(self.size)
        self.left -= 1
        if self.left > 0:
            self.bench.backlog.wait(self)


@dataclass
class Bench:
    clock: SimClock = field(default_factory=SimClock)
    is_disk_behind: bool = False
    woken: list[str] = field(default_factory=list)
    end: int = 0

    def __post_init__(self) -> None:
        self.backlog = Backlog(self.clock, LIMIT_MAX, lambda: self.is_disk_behind)
        self.partition = PartitionBacklog(self.backlog)

    def append(self, size: int) -> None:
        self.end += 1
        self.partition.add(self.end, size)

    def wait(self, name: str, size: int = 0, left: int = 1) -> Waiter:
        waiter = Waiter(self, name, size, left)
        self.backlog.wait(waiter)
        return waiter


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_it_is_full_above_its_limit(bench: Bench) -> None:
    bench.append(LIMIT)
    assert not bench.backlog.is_full
    bench.append(1)
    assert bench.backlog.is_full
    bench.partition.release(1)
    assert not bench.backlog.is_full
    assert bench.backlog.size_bytes == bench.partition.size_bytes == 1


def test_a_partition_that_gives_up_its_role_takes_its_share_along(bench: Bench) -> None:
    other = PartitionBacklog(bench.backlog)
    other.add(7, 100)
    bench.append(LIMIT)
    bench.partition.clear()
    assert bench.backlog.size_bytes == 100
    bench.partition.clear()
    bench.partition.release(bench.end)
    assert bench.backlog.size_bytes == 100
    assert list(bench.backlog.partitions) == [other]


def test_waiters_go_on_in_their_order_until_it_is_full_again(bench: Bench) -> None:
    bench.append(LIMIT + 1)
    for name in ("a", "b", "c"):
        bench.wait(name, size=500, left=2)
    bench.clock.advance(1)
    assert bench.woken == []
    bench.partition.release(1)
    bench.clock.advance(1)
    assert bench.woken == ["a", "b"]
    bench.partition.release(bench.end)
    bench.clock.advance(1)
    assert bench.woken == ["a", "b", "c", "a"]  # "a" and "b" went to the end of the queue


def test_one_that_is_gone_is_not_called(bench: Bench) -> None:
    bench.append(LIMIT + 1)
    gone = bench.wait("gone")
    bench.wait("stays")
    bench.backlog.forget(gone)
    bench.partition.release(1)
    bench.clock.advance(1)
    assert bench.woken == ["stays"]


def test_a_producer_with_nothing_in_flight_passes(bench: Bench) -> None:
    """Up to twice the limit: producers with one request each cannot pipeline, but they need memory too."""
    bench.append(LIMIT + 1)
    idle, busy = Connection(unacknowledged=0), Connection(unacknowledged=1)
    assert not bench.backlog.holds_back(bench.partition, ALL, idle)
    assert bench.backlog.holds_back(bench.partition, ALL, busy)
    assert bench.backlog.holds_back(bench.partition, 1, idle)
    assert bench.backlog.holds_back(bench.partition, 0, idle)
    bench.append(LIMIT)
    assert bench.backlog.holds_back(bench.partition, ALL, idle)


def drain(bench: Bench, rate: int, latency_ms: int) -> None:
    """Producers wait all the time; each append is acknowledged after the latency."""
    bench.is_disk_behind = True
    bench.wait("a", left=10_000)
    for _ in range(4 * latency_ms + 2000):
        bench.clock.advance(1)
        bench.append(rate)
        bench.partition.release(bench.end - latency_ms)


@pytest.mark.parametrize("rate", [1, 20, 1000])
def test_the_limit_follows_the_rate_of_acknowledgements(bench: Bench, rate: int) -> None:
    """The rate is in bytes per millisecond."""
    drain(bench, rate, latency_ms=10)
    assert bench.backlog.limit_bytes == pytest.approx(min(max(rate * TARGET_MS, LIMIT), LIMIT_MAX), rel=0.05)


@pytest.mark.parametrize(("latency_ms", "target_ms"), [(10, TARGET_MS), (150, 300.0), (900, TARGET_MS_MAX)])
def test_slow_acknowledgements_raise_the_limit(bench: Bench, latency_ms: int, target_ms: float) -> None:
    """Otherwise the pipeline would not be full, and the limit would lower the rate from which it is computed."""
    drain(bench, 10, latency_ms)
    assert bench.backlog.limit_bytes == pytest.approx(10 * target_ms, rel=0.05)


def test_a_cleared_backlog_leaves_no_sample(bench: Bench) -> None:
    """The latency in a replica's next role is not measured from an append in the previous one."""
    bench.is_disk_behind = True
    bench.wait("a", left=10_000)
    bench.append(1)
    assert not bench.backlog.wants_sample
    bench.partition.clear()
    assert bench.backlog.wants_sample


def test_without_producers_that_wait_the_limit_stays(bench: Bench) -> None:
    for _ in range(100):
        bench.append(1)
        bench.clock.advance(1000)
        bench.partition.release(bench.end)
    assert bench.backlog.limit_bytes == LIMIT


def test_a_stalled_partition_does_not_hold_back_others(bench: Bench) -> None:
    stalled = PartitionBacklog(bench.backlog)
    stalled.add(1, LIMIT + 1)
    bench.wait("a")
    bench.clock.advance(STALL_MS / 2)
    assert bench.woken == []
    bench.clock.advance(STALL_MS)
    assert bench.woken == ["a"]
    assert not bench.backlog.is_full
    assert stalled.is_stalled
    bench.append(LIMIT + 1)
    assert bench.backlog.is_full
    busy = Connection()
    assert bench.backlog.holds_back(bench.partition, ALL, busy)
    assert all(bench.backlog.holds_back(stalled, acks, busy) for acks in (ALL, 1, 0))  # its own backlog is full
    bench.wait("b", left=10_000)
    bench.clock.advance(ABANDONED_MS)
    assert bench.backlog.holds_back(stalled, ALL, busy)
    assert not bench.backlog.holds_back(stalled, 1, busy)
    assert not bench.backlog.holds_back(stalled, 0, busy)


def test_a_stalled_partition_that_moves_counts_again(bench: Bench) -> None:
    for _ in range(3):
        bench.append(LIMIT)
    bench.wait("a")
    bench.clock.advance(2 * STALL_MS)
    assert bench.partition.is_stalled
    assert bench.backlog.size_bytes == 0
    bench.append(10)
    assert bench.backlog.size_bytes == 0
    bench.partition.release(1)
    assert not bench.partition.is_stalled
    assert bench.backlog.size_bytes == bench.partition.size_bytes == 2 * LIMIT + 10


def test_a_partition_that_moves_slowly_is_not_stalled(bench: Bench) -> None:
    for _ in range(10):
        bench.append(LIMIT)
    bench.wait("a")
    for offset in range(1, 6):
        bench.clock.advance(STALL_MS * 0.9)
        bench.partition.release(offset)
    assert not bench.partition.is_stalled
    assert bench.woken == []


def test_producers_wait_for_a_disk_that_falls_behind(bench: Bench) -> None:
    bench.is_disk_behind = True
    assert bench.backlog.is_full
    assert bench.backlog.holds_back(bench.partition, ALL, Connection(unacknowledged=0))
    bench.wait("a")
    bench.clock.advance(10 * RECHECK_MS)
    assert bench.woken == []
    bench.is_disk_behind = False
    bench.clock.advance(2 * RECHECK_MS)
    assert bench.woken == ["a"]


def test_short_waits_count_towards_the_drain_rate(bench: Bench) -> None:
    """Every acknowledgement arrives after 20 ms, covers everything and ends the wait: the cluster drains five times the
    limit within the target time, so the limit grows."""
    for _ in range(200):
        while not bench.backlog.is_full:
            bench.append(LIMIT // 4)
        bench.wait("producer")
        bench.clock.advance(20)
        bench.partition.release(bench.end)
        bench.clock.advance(0)
    assert bench.backlog.limit_bytes == LIMIT_MAX

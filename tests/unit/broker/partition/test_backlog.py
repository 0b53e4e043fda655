"""The backlog of unacknowledged records: which producers wait, for how long, and in which order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ottla.broker.partition.backlog import ABANDONED_MS, ALL, RECHECK_MS, STALL_MS, Backlog, PartitionBacklog
from ottla.broker.partition.backlog_limit import LEAST_SHARE, TARGET_MS, TARGET_MS_MAX
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
    lag_max_ms: float = 10_000.0
    woken: list[str] = field(default_factory=list)
    end: int = 0

    def __post_init__(self) -> None:
        self.backlog = Backlog(self.clock, LIMIT_MAX, lambda: self.is_disk_behind, lambda: self.lag_max_ms)
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


@pytest.mark.parametrize(("latency_ms", "target_ms"), [(10, TARGET_MS), (150, 450.0), (900, TARGET_MS_MAX)])
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


def test_stalled_partitions_share_one_limit(bench: Bench) -> None:
    """A disk that pauses stalls all of its partitions at once. A limit for each would admit more than the disk can
    catch up with before the broker leaves the ISR (load seed 1286)."""
    stalled = [PartitionBacklog(bench.backlog) for _ in range(2)]
    for each in stalled:
        each.add(1, LIMIT // 2)
    bench.append(LIMIT)
    bench.wait("a", left=10_000)
    bench.clock.advance(2 * STALL_MS)
    busy = Connection()
    assert all(each.is_stalled for each in stalled)
    assert bench.backlog.stalled_bytes == 2 * LIMIT
    assert all(bench.backlog.holds_back(each, ALL, busy) for each in stalled)
    bench.partition.release(1)
    assert bench.backlog.stalled_bytes == LIMIT
    assert not bench.backlog.holds_back(stalled[0], ALL, busy)
    bench.clock.advance(ABANDONED_MS)
    stalled[0].add(2, 1)
    assert bench.backlog.stalled_bytes == 0, "a follower that is considered dead stops its own partitions only"
    assert not bench.backlog.holds_back(stalled[1], ALL, busy)
    assert all(each.size_bytes < LIMIT for each in stalled)
    stalled[0].release(2)
    assert bench.backlog.size_bytes == bench.backlog.stalled_bytes == 0
    stalled[1].clear()
    assert bench.backlog.stalled == 0


def test_a_partition_of_a_slow_cluster_is_not_stalled(bench: Bench) -> None:
    """Where an acknowledgement takes a second, a second without one says nothing."""
    drain(bench, 10, latency_ms=900)
    bench.append(LIMIT)
    bench.clock.advance(1.5 * STALL_MS)
    assert not bench.partition.is_stalled
    bench.clock.advance(STALL_MS)
    assert bench.partition.is_stalled


def test_a_pause_does_not_lower_the_limit(bench: Bench) -> None:
    """A lower limit would keep the rate low after the pause (load seed 1359). A cluster that stays slow lowers it."""
    drain(bench, 20, latency_ms=10)
    assert bench.backlog.limit_bytes == pytest.approx(20 * TARGET_MS, rel=0.05)
    bench.clock.advance(700)
    assert bench.backlog.limit_bytes == pytest.approx(20 * TARGET_MS, rel=0.05)
    drain(bench, 10, latency_ms=10)
    assert bench.backlog.limit_bytes == pytest.approx(20 * TARGET_MS, rel=0.05)
    for _ in range(2):
        drain(bench, 10, latency_ms=10)
    assert bench.backlog.limit_bytes == pytest.approx(10 * TARGET_MS, rel=0.05)


@pytest.mark.parametrize(("lag_max_ms", "share"), [(10_000.0, 1.0), (6000.0, 0.75), (800.0, 0.1)])
def test_the_limit_falls_below_its_minimum_before_a_follower_leaves_the_isr(lag_max_ms: float, share: float) -> None:
    """Acknowledgements that take two seconds are fine if followers may lag ten seconds, but not six (load seed
    1267)."""
    bench = Bench(lag_max_ms=lag_max_ms)
    drain(bench, 1, latency_ms=2000)
    assert bench.backlog.limit_bytes == pytest.approx(share * TARGET_MS_MAX, rel=0.05)


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

"""Deadlines of many waits with one timer, and wake-ups batched per iteration of the event loop."""

from __future__ import annotations

import pytest

from ottla.broker.partition.waits import Deadlines, Wakeups
from ottla.sim.clock import SimClock


class Wait:
    def __init__(self, clock: SimClock, name: str, told: list[tuple[str, float]]) -> None:
        self._clock, self._name, self._told = clock, name, told
        self.ended = False

    def expire(self) -> None:
        if not self.ended:
            self.ended = True
            self._told.append((self._name, self._clock.monotonic_ms()))


class Bench:
    def __init__(self) -> None:
        self.clock = SimClock()
        self.deadlines = Deadlines(self.clock)
        self.told: list[tuple[str, float]] = []

    def add(self, delay_ms: int, name: str) -> Wait:
        wait = Wait(self.clock, name, self.told)
        self.deadlines.add(delay_ms, wait)
        return wait


def test_each_ends_at_its_time() -> None:
    bench = Bench()
    bench.add(300, "c")
    bench.add(100, "a")
    bench.clock.advance(50)
    bench.add(100, "b")
    bench.add(1000, "d")
    bench.clock.advance(2000)
    assert bench.told == [("a", 100.0), ("b", 150.0), ("c", 300.0), ("d", 1050.0)]


def test_what_ended_before_is_left_alone() -> None:
    bench = Bench()
    first, _ = bench.add(100, "a"), bench.add(100, "b")
    first.ended = True
    bench.clock.advance(200)
    assert bench.told == [("b", 100.0)]


def test_no_time_at_all() -> None:
    bench = Bench()
    bench.add(0, "now")
    bench.clock.advance(0)
    assert bench.told == [("now", 0.0)]


def test_one_timer_serves_all() -> None:
    bench = Bench()
    for number in range(1000):
        bench.add(500, str(number))
    assert len([entry for entry in bench.clock._timers if entry[2].callback is not None]) == 1
    bench.clock.advance(500)
    assert len(bench.told) == 1000


def test_waits_that_end_early_are_not_kept() -> None:
    """A reader that polls thousands of times a second must not accumulate finished waits."""
    bench = Bench()
    for _ in range(10_000):
        bench.add(30_000, "x").ended = True
    assert sum(map(len, bench.deadlines._queues.values())) <= 2


def test_a_wait_that_adds_another_when_it_ends() -> None:
    bench = Bench()

    class Again(Wait):
        def expire(self) -> None:
            super().expire()
            bench.add(100, "second")
            bench.add(10, "first")

    bench.deadlines.add(100, Again(bench.clock, "zero", bench.told))
    bench.clock.advance(1000)
    assert bench.told == [("zero", 100.0), ("first", 110.0), ("second", 200.0)]


def test_the_end_of_everything() -> None:
    bench = Bench()
    bench.add(100, "a")
    bench.add(9000, "b")
    bench.deadlines.expire_all()
    assert sorted(name for name, _ in bench.told) == ["a", "b"]
    bench.clock.advance(10_000)
    assert len(bench.told) == 2


@pytest.mark.parametrize("times", [1, 12])
def test_a_reader_is_woken_once_a_turn(times: int) -> None:
    clock = SimClock()
    wakeups = Wakeups(clock)
    woken: list[str] = []
    for _ in range(times):
        wakeups.wake(1, lambda: woken.append("one"))
        wakeups.wake(2, lambda: woken.append("two"))
    assert woken == []
    clock.run_until_idle()
    assert woken == ["one", "two"]
    clock.run_until_idle()
    wakeups.wake(1, lambda: woken.append("again"))
    clock.run_until_idle()
    assert woken == ["one", "two", "again"]


def test_fetches_are_woken_at_the_end_of_a_read_without_the_event_loop() -> None:
    clock = SimClock()
    wakeups = Wakeups(clock)
    woken: list[str] = []
    wakeups.begin_read()
    wakeups.wake(1, lambda: woken.append("one"))
    wakeups.wake(1, lambda: woken.append("one"))
    assert woken == []
    wakeups.end_read()
    assert woken == ["one"]
    wakeups.wake(2, lambda: woken.append("two"))
    assert woken == ["one"]
    clock.advance(0)
    assert woken == ["one", "two"]


def test_a_fetch_that_fails_does_not_fail_the_read(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("a bug")

    wakeups = Wakeups(SimClock())
    wakeups.begin_read()
    wakeups.wake(1, fail)
    wakeups.end_read()
    assert "has failed" in caplog.text

"""Virtual time runs callbacks in order, each at its scheduled time."""

from __future__ import annotations

from functools import partial

from ottla.sim.clock import SimClock


def test_timers_run_in_the_order_of_their_moments() -> None:
    clock = SimClock(start_ms=1_000)
    seen: list[tuple[str, float, int]] = []

    def note(name: str) -> None:
        seen.append((name, clock.monotonic_ms(), clock.now_ms()))

    clock.call_later(20, partial(note, "late"))
    clock.call_later(10, partial(note, "early"))
    clock.call_later(10, partial(note, "early, asked second"))
    clock.call_soon(partial(note, "soon"))
    clock.advance(15)
    clock.advance(15)
    assert seen == [
        ("soon", 0, 1_000),
        ("early", 10, 1_010),
        ("early, asked second", 10, 1_010),
        ("late", 20, 1_020),
    ]
    assert clock.monotonic_ms() == 30


def test_idle_means_nothing_due_now() -> None:
    clock = SimClock()
    seen: list[str] = []
    clock.call_soon(lambda: clock.call_soon(lambda: seen.append("second turn")))
    clock.call_later(1, lambda: seen.append("future"))
    clock.run_until_idle()
    assert seen == ["second turn"]
    assert clock.monotonic_ms() == 0


def test_a_cancelled_timer_does_not_run() -> None:
    clock = SimClock()
    seen: list[str] = []
    timer = clock.call_later(5, lambda: seen.append("cancelled"))
    other = clock.call_later(5, lambda: seen.append("cancelled by the one before"))
    clock.call_later(4, other.cancel)
    timer.cancel()
    clock.advance(10)
    assert seen == []
    assert clock.next_timer_ms() is None


def test_the_wall_clock_may_jump() -> None:
    clock = SimClock(start_ms=1_000)
    clock.step_wall_clock(-500)
    assert clock.now_ms() == 500
    assert clock.monotonic_ms() == 0

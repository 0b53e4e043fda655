"""The token bucket that limits the traffic of throttled replicas: pure, with the time as an argument."""

from __future__ import annotations

import pytest

from ottla.machines.replication import Throttle
from ottla.machines.replication.throttle import BURST_MS, TURN_BYTES_MIN, UNLIMITED

RATE = 1_000_000


def moved(throttle: Throttle, duration_ms: int, step_ms: int, most: int = 1 << 30) -> int:
    """Returns the total that passes for a caller that asks repeatedly, at most that much each time."""
    total = 0
    for now_ms in range(0, duration_ms, step_ms):
        size = min(throttle.allowance(now_ms), most)
        throttle.record(size, now_ms)
        total += size
    return total


def test_without_a_rate_everything_goes() -> None:
    throttle = Throttle()
    assert not throttle.is_limited
    throttle.record(1 << 40, 0)
    assert throttle.allowance(0) == UNLIMITED
    assert throttle.wait_ms(0) == 0


@pytest.mark.parametrize("step_ms", [1, 10, 100, 500])
@pytest.mark.parametrize("rate", [10_000, RATE, 100 * RATE])
def test_the_rate_is_kept_however_often_it_is_asked(rate: int, step_ms: int) -> None:
    throttle = Throttle()
    throttle.set_rate(rate, 0)
    total = moved(throttle, 60_000, step_ms)
    assert 0.95 * rate * 60 - TURN_BYTES_MIN <= total <= rate * 60 + TURN_BYTES_MIN


def test_what_was_not_used_is_saved_for_one_second_at_most() -> None:
    throttle = Throttle()
    throttle.set_rate(RATE, 0)
    assert throttle.allowance(3_600_000) == RATE * BURST_MS // 1000


def test_a_batch_that_is_larger_than_the_allowance_is_paid_for_later() -> None:
    throttle = Throttle()
    throttle.set_rate(RATE, 0)
    assert 0 < throttle.allowance(100) < 5 * RATE
    throttle.record(5 * RATE, 100)
    assert throttle.allowance(4000) == 0
    assert throttle.wait_ms(4000) > 900
    assert throttle.allowance(4000 + throttle.wait_ms(4000)) > 0


def test_what_is_on_its_way_in_the_same_reply_counts() -> None:
    throttle = Throttle()
    throttle.set_rate(RATE, 0)
    assert throttle.allowance(500, pending=0) > 0
    assert throttle.allowance(500, pending=RATE) == 0


def test_a_rate_of_nothing_stops_everything() -> None:
    throttle = Throttle()
    throttle.set_rate(0, 0)
    assert throttle.allowance(1e12) == 0
    assert throttle.wait_ms(1e12) == float("inf")
    throttle.set_rate(RATE, 1e12)
    assert throttle.allowance(1e12 + 1000) > 0


def test_the_same_rate_again_forgives_no_debt() -> None:
    throttle = Throttle()
    throttle.set_rate(RATE, 0)
    throttle.record(10 * RATE, 0)
    throttle.set_rate(RATE, 0)
    assert throttle.allowance(5000) == 0

"""Backoff between attempts."""

from __future__ import annotations

import pytest

from ottla.net.backoff import Backoff


def test_pauses_double_up_to_the_limit_and_begin_again() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert [backoff.next_s() for _ in range(2)] == [0.5, 1.0]


def test_the_limit_holds_for_the_first_pause_too() -> None:
    assert Backoff(5.0, 3.0).next_s() == 3.0


def test_jitter_changes_a_pause_and_not_the_ones_after_it() -> None:
    factors = iter([0.8, 1.2, 1.0])
    bounds: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        bounds.append((low, high))
        return next(factors)

    backoff = Backoff(1.0, 60.0, jitter=(0.8, 1.2), uniform=uniform)
    assert [backoff.next_s() for _ in range(3)] == pytest.approx([0.8, 2.4, 4.0])
    assert bounds == [(0.8, 1.2)] * 3

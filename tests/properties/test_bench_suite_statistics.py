"""The histogram compared with a sorted list; ratios, effects and the remaining time compared with expected values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.bench.suite.histogram import Histogram, bucket_of, from_json, highest_in, merged
from ottla.bench.suite.statistics import effects, paired_ratio, summary, time_left_s, unpaired_ratio

VALUES = st.lists(st.one_of(st.integers(0, 5000), st.integers(0, 10**9)), min_size=1, max_size=200)
FIGURE = st.floats(0.001, 1e9)


def histogram_of(values: list[int]) -> Histogram:
    found = Histogram()
    for value in values:
        found.add(value)
    return found


@given(st.integers(0, 10**12))
def test_a_bucket_is_a_thousandth_wide(value: int) -> None:
    bucket = bucket_of(value)
    highest = highest_in(bucket)
    assert value <= highest <= value + value // 1024
    assert bucket_of(highest) == bucket
    assert bucket_of(highest + 1) == bucket + 1


@given(VALUES, st.sampled_from([0.001, 0.5, 0.9, 0.99, 0.999, 1.0]))
def test_percentiles_are_those_of_the_sorted_values(values: list[int], share: float) -> None:
    exact = sorted(values)[max(math.ceil(share * len(values)), 1) - 1]
    found = histogram_of(values).percentile(share)
    assert exact <= found <= exact + exact // 1024


@given(VALUES, VALUES)
def test_merging_is_counting_together(some: list[int], others: list[int]) -> None:
    together = merged([histogram_of(some), histogram_of(others)])
    assert together.counts == histogram_of(some + others).counts
    assert together.count == len(some) + len(others)
    assert from_json(together.as_json()).percentile(0.99) == together.percentile(0.99)


def test_an_empty_histogram_has_no_percentile() -> None:
    assert Histogram().percentile(0.5) == 0


@given(st.lists(FIGURE, min_size=1, max_size=9))
def test_the_median_lies_between(values: list[float]) -> None:
    found = summary(values)
    assert found.low <= found.median <= found.high
    assert found.spread >= 0


@given(st.dictionaries(st.integers(0, 5), FIGURE, min_size=1), st.floats(0.01, 100))
def test_a_ratio_is_that_of_each_repetition(peer: dict[int, float], times: float) -> None:
    """However much repetitions differ: noise that affects both does not count."""
    found = paired_ratio({at: value * times for at, value in peer.items()}, peer)
    assert found is not None
    assert found.ratio == pytest.approx(times)
    assert found.low == pytest.approx(found.high)


def test_no_common_repetition_is_no_ratio() -> None:
    assert paired_ratio({0: 1.0}, {1: 1.0}) is None
    assert paired_ratio({0: 1.0}, {0: 0.0}) is None


def test_a_change_within_the_noise_is_not_clear() -> None:
    noisy = unpaired_ratio([90, 110], [100, 105])
    clear = unpaired_ratio([190, 210], [100, 105])
    assert noisy is not None
    assert not noisy.is_clear
    assert clear is not None
    assert clear.is_clear


@given(st.floats(1.1, 50), st.floats(1.0, 50))
def test_the_setting_that_does_more_is_first(large: float, small: float) -> None:
    small = min(small, math.sqrt(large))
    cells = [
        ({"acks": acks, "batch": batch, "same": 1}, 1000 * large**has_large * small**has_small)
        for has_large, acks in enumerate((1, 0))
        for has_small, batch in enumerate((16, 128))
    ]
    found = effects(cells)
    assert [effect.setting for effect in found] == ["acks", "batch"]
    assert (found[0].best, found[0].worst) == (0, 1)
    assert found[0].factor == pytest.approx(large)
    assert sum(effect.share for effect in found) == pytest.approx(1.0)


def test_yes_and_one_are_two_levels() -> None:
    assert effects([({"a": True}, 1.0), ({"a": 1}, 2.0)])[0].factor == pytest.approx(2.0)


def test_time_left_learns_from_what_was_done() -> None:
    assert time_left_s([], [2.0, 3.0]) == 5.0
    assert time_left_s([(2.0, 4.0)], [2.0, 3.0]) == 10.0

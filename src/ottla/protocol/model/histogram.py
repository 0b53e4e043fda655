"""A histogram of durations or sizes, updated where they occur at the cost of one look-up.

Nothing is computed until it is requested: `broker.metrics` converts the counts to Prometheus' format.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

DURATION_BOUNDS_S = (
    *(0.000_05, 0.000_1, 0.000_2, 0.000_5),
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 30.0),
)
"""From a reply served from memory to a producer that gives up."""


class Histogram:
    """`counts[i]` is the number of values above `bounds[i - 1]` and at most `bounds[i]`; the last count is for values
    above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = DURATION_BOUNDS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """The sum of all values."""

    def note(self, value: float, times: int = 1) -> None:
        """Counts a value, `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """The number of values recorded, over all buckets."""
        return sum(self.counts)

    def add(self, other: Histogram) -> None:
        """Adds the counts of another histogram with the same bounds."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

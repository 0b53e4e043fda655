"""How long requests took: a count for each microsecond, so that a million of them take little memory and no time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import NamedTuple

Latencies = Mapping[int, int]
"""Microseconds, and how many requests took that long."""


class Percentiles(NamedTuple):
    p50_us: float
    p99_us: float
    p999_us: float


def percentile(latencies: Latencies, share: float) -> float:
    left = share * sum(latencies.values())
    for microseconds in sorted(latencies):
        left -= latencies[microseconds]
        if left <= 0:
            return float(microseconds)
    return 0.0


def percentiles(latencies: Latencies) -> Percentiles:
    return Percentiles(*(percentile(latencies, share) for share in (0.5, 0.99, 0.999)))


def median_percentiles(runs: Iterable[Latencies]) -> Percentiles:
    """Of several runs: the median of each percentile, so that one disturbed run does not decide."""
    found = [percentiles(latencies) for latencies in runs]
    return Percentiles(*(median(values) for values in zip(*found, strict=True)))

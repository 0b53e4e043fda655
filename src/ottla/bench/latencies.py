"""Latencies as a count for each microsecond, so that a million requests take little memory and no time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import NamedTuple

Latencies = Mapping[int, int]
"""The number of requests for each latency in microseconds."""


class Percentiles(NamedTuple):
    """Percentiles of latencies, in microseconds."""

    p50_us: float
    p99_us: float
    p999_us: float


def percentile(latencies: Latencies, share: float) -> float:
    """Returns the latency in microseconds that this share of the requests does not exceed; 0 if there are none."""
    left = share * sum(latencies.values())
    for microseconds in sorted(latencies):
        left -= latencies[microseconds]
        if left <= 0:
            return float(microseconds)
    return 0.0


def percentiles(latencies: Latencies) -> Percentiles:
    """Returns the median, the 99th and the 99.9th percentile."""
    return Percentiles(*(percentile(latencies, share) for share in (0.5, 0.99, 0.999)))


def median_percentiles(runs: Iterable[Latencies]) -> Percentiles:
    """Returns the median of each percentile over several runs, so that one disturbed run does not decide."""
    found = [percentiles(latencies) for latencies in runs]
    return Percentiles(*(median(values) for values in zip(*found, strict=True)))

"""Computes the figures of a row from repeated measurements of a broker and the floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ottla.bench.latencies import median_percentiles
from ottla.bench.pipeline import LoadResult
from ottla.bench.quotients import per, rate

FLOOR = "floor"
KEEPING_FLOOR = "floor + CRC, kept"
"""The floor that also checks the CRC of what it reads and keeps the data for a while, as a broker must.

Only the gap below this floor is the broker's own.
"""
FLOORS = (FLOOR, KEEPING_FLOOR)


@dataclass(frozen=True, slots=True)
class Content:
    """The content of one request in bytes of values, the same for the broker and the floor."""

    value_bytes: int
    record_count: int


def figures_of(content: Content, runs: Sequence[LoadResult], floor: Sequence[LoadResult]) -> dict[str, float]:
    """Returns medians over the repetitions. A share compares each run with the floor's run of the same repetition."""
    rates = [run.requests_per_s for run in runs]
    middle = median(rates)
    cpu = [cpu_s_per_gb(content, run) for run in runs]
    floor_cpu = [cpu_s_per_gb(content, run) for run in floor]
    latency = median_percentiles(run.latencies for run in runs)
    return {
        "mb_per_s": middle * content.value_bytes / 1e6,
        "records_per_s": middle * content.record_count,
        "requests_per_s": middle,
        **latency._asdict(),
        "cpu_s_per_gb": median(cpu),
        "cpu_us_per_request": median(cpu) * content.value_bytes / 1e3,
        "share_of_floor": median(_ratios(rates, [run.requests_per_s for run in floor])),
        "cpu_to_floor": median(_ratios(cpu, floor_cpu)),
        "driver_busy": median(rate(run.driver_cpu_s, run.seconds) for run in runs),
        "spread": per(max(rates) - min(rates), middle),
    }


def cpu_s_per_gb(content: Content, run: LoadResult) -> float:
    """Returns the server's CPU seconds for each gigabyte of values."""
    return per(run.server_cpu_s, run.requests * content.value_bytes / 1e9)


def rate_ratio(runs: Sequence[LoadResult], others: Sequence[LoadResult]) -> float:
    """Returns the median ratio of request rates, repetition by repetition."""
    return median(_ratios([run.requests_per_s for run in runs], [run.requests_per_s for run in others]))


def _ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    return [per(value, other) for value, other in zip(values, others, strict=True)]

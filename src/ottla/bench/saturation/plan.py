"""The configurations of the saturation benchmark, and the loads of each. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

SIZES = {"1 KB": 1024, "10 KB": 10 * 1024, "100 KB": 100 * 1024, "1 MB": 1_000_000}
"""The largest size is below the 1,048,588 bytes that a broker accepts in one batch by default."""
PARTITIONS = (1, 10, 100)
FACTORS = (0.5, 1.0, 1.5, 2.0, 3.0)
PEAK = "peak"
BURST = "burst"
BURST_RECORDS = 600
BURST_RECORD_BYTES = 500 * 1024
BURST_SIZE = "500 KB"

START_S = 4.0
"""Estimated time to start the brokers and create the topics of a configuration."""
SETTLE_S = 1.5
"""Estimated time to wait for outstanding records and read the end offsets after a row."""
BURST_S = 20.0


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one row: a multiple of the measured peak, or the measurement of the peak, or the burst."""

    name: str
    factor: float = 0.0


@dataclass(frozen=True, slots=True)
class Configuration:
    """A record size, a number of partitions and a kind of producer, with the loads to offer."""

    size: str
    record_bytes: int
    partitions: int
    is_idempotent: bool
    loads: tuple[Load, ...]
    """The first load measures the peak."""

    @property
    def name(self) -> str:
        """The configuration in words, as tables and `--only` use it."""
        plural = "" if self.partitions == 1 else "s"
        kind = "idempotent" if self.is_idempotent else "not idempotent"
        return f"{self.size}, {self.partitions} partition{plural}, {kind}"

    @property
    def is_burst(self) -> bool:
        """True if the last load is a burst instead of a steady rate."""
        return self.loads[-1].name == BURST

    def estimate_s(self, seconds: float) -> float:
        """Returns the estimated duration with rows of this many seconds."""
        return START_S + sum(_estimate_s(load, seconds) for load in self.loads)


def _estimate_s(load: Load, seconds: float) -> float:
    if load.name == BURST:
        return BURST_S
    return (2 if load.name == PEAK else 1) * (seconds + SETTLE_S)


def factor_name(factor: float) -> str:
    """Returns the name of a load that offers a multiple of the peak."""
    return f"{factor:g}x"


def configurations(quick: bool = False) -> list[Configuration]:
    """Returns all configurations, or for a quick run the corners: small and large records, one partition and many."""
    factors = (1.0, 3.0) if quick else FACTORS
    loads = (Load(PEAK), *(Load(factor_name(factor), factor) for factor in factors))
    sizes = ("1 KB", "1 MB") if quick else tuple(SIZES)
    partitions = (1, 100) if quick else PARTITIONS
    found = [
        Configuration(size, SIZES[size], count, is_idempotent, loads)
        for size in sizes
        for count in partitions
        for is_idempotent in (True, False)
    ]
    burst = Configuration(BURST_SIZE, BURST_RECORD_BYTES, 1, False, (Load(PEAK), Load(BURST)))
    return [*found, burst]


def chosen(found: Sequence[Configuration], pattern: str | None) -> list[Configuration]:
    """Returns the configurations with a row that matches the regular expression, without their other rows.

    The measurement of the peak stays, because the other loads are multiples of it. Raises ValueError if no row is left.
    """
    if pattern is None:
        return list(found)
    try:
        wanted = re.compile(pattern)
    except re.error as problem:
        raise ValueError(f"--only is not a regular expression: {problem}") from None
    kept = []
    for each in found:
        loads = tuple(load for load in each.loads if wanted.search(f"{each.name}, {load.name}"))
        if loads:
            rest = tuple(load for load in loads if load.name != PEAK)
            kept.append(
                Configuration(each.size, each.record_bytes, each.partitions, each.is_idempotent, (Load(PEAK), *rest))
            )
    if not kept:
        raise ValueError(f"no row matches {pattern!r}; --list prints the names")
    return kept

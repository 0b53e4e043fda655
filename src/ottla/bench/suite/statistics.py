"""Medians, spreads, ratios of interleaved repetitions, and the effects of settings. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from ottla.bench.suite.settings import Value


class Summary(NamedTuple):
    """The median and the range of repetitions."""

    median: float
    low: float
    high: float
    repetitions: int

    @property
    def spread(self) -> float:
        """The range of the repetitions as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


class Ratio(NamedTuple):
    """A ratio with its range over the repetitions."""

    ratio: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether every repetition agrees: more, or less."""
        return self.low > 1 or self.high < 1


class Effect(NamedTuple):
    """The effect of one setting on a figure."""

    setting: str
    best: Value
    worst: Value
    factor: float
    """The figure with the best value over that with the worst, averaged over all other settings (geometric means)."""
    share: float
    """The share of the variation between all cells (of the logarithm), from 0 to 1."""


def summary(values: Sequence[float]) -> Summary:
    """Returns the median, the extremes and the number of values. Raises ValueError if there are none."""
    if not values:
        raise ValueError("no values")
    return Summary(median(values), min(values), max(values), len(values))


def paired_ratio(subject: Mapping[int, float], peer: Mapping[int, float]) -> Ratio | None:
    """Returns the ratio by repetition, whose values were measured back to back, so that noise affects both."""
    ratios = [subject[at] / peer[at] for at in sorted(subject.keys() & peer.keys()) if peer[at] > 0]
    return Ratio(median(ratios), min(ratios), max(ratios)) if ratios else None


def unpaired_ratio(later: Sequence[float], earlier: Sequence[float]) -> Ratio | None:
    """Returns the ratio of two runs. Its range is the widest that any two repetitions give."""
    if not later or not earlier or min(earlier) <= 0:
        return None
    return Ratio(median(later) / median(earlier), min(later) / max(earlier), max(later) / min(earlier))


def effects(cells: Sequence[tuple[Mapping[str, Value], float]]) -> list[Effect]:
    """Returns the effects of the settings that differ between cells, the strongest first."""
    usable = [(configuration, math.log(value)) for configuration, value in cells if value > 0]
    if len(usable) < 2:
        return []
    mean = fmean(value for _, value in usable)
    total = sum((value - mean) ** 2 for _, value in usable)
    found = []
    for setting in usable[0][0]:
        levels: dict[Value, list[float]] = defaultdict(list)
        for configuration, value in usable:
            levels[_level(configuration[setting])].append(value)
        if len(levels) < 2:
            continue
        means = {level: fmean(values) for level, values in levels.items()}
        best, worst = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
        between = sum(len(values) * (means[level] - mean) ** 2 for level, values in levels.items())
        share = between / total if total > 0 else 0.0
        found.append(Effect(setting, best, worst, math.exp(means[best] - means[worst]), min(share, 1.0)))
    return sorted(found, key=lambda effect: (-effect.share, effect.setting))


def _level(value: Value) -> Value:
    """Keeps yes and 1 apart, because True equals 1 in Python."""
    return str(value).lower() if isinstance(value, bool) else value


def time_left_s(done: Sequence[tuple[float, float]], left_estimates_s: Sequence[float]) -> float:
    """Returns the time left, correcting estimates by their error in `done`, which has (estimated, real) seconds."""
    estimated = sum(estimate for estimate, _ in done)
    correction = sum(real for _, real in done) / estimated if estimated > 0 else 1.0
    return sum(left_estimates_s) * correction

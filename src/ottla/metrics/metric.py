"""What a metric is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "ottla_"


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    """Besides `broker`, which every one has."""


def counter(name: str, help_text: str, *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}_total", Kind.COUNTER, help_text, labels)


def gauge(name: str, help_text: str, *labels: str) -> Metric:
    return Metric(PREFIX + name, Kind.GAUGE, help_text, labels)


def histogram(name: str, help_text: str, *labels: str) -> Metric:
    return Metric(PREFIX + name, Kind.HISTOGRAM, help_text, labels)

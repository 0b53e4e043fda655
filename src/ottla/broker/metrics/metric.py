"""The description of a metric."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "ottla_"


class Kind(StrEnum):
    """The Prometheus type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """The name, type, help text and labels of a metric."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    """Labels in addition to `broker`, which every metric has."""


def counter(name: str, help_text: str, *labels: str) -> Metric:
    """Declares a counter; its name gets the suffix `_total`."""
    return Metric(f"{PREFIX}{name}_total", Kind.COUNTER, help_text, labels)


def gauge(name: str, help_text: str, *labels: str) -> Metric:
    """Returns a gauge; the prefix of all metrics is added to its name."""
    return Metric(PREFIX + name, Kind.GAUGE, help_text, labels)


def histogram(name: str, help_text: str, *labels: str) -> Metric:
    """Returns a histogram; the prefix of all metrics is added to its name."""
    return Metric(PREFIX + name, Kind.HISTOGRAM, help_text, labels)

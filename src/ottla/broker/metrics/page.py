"""A page in Prometheus' text format (version 0.0.4), collected metric by metric and joined at the end.

The text looks like this:

    # HELP ottla_connections Open connections of clients and other brokers.
    # TYPE ottla_connections gauge
    ottla_connections{broker="1"} 3
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from ottla.broker.metrics.definitions import all_metrics
from ottla.broker.metrics.metric import Kind, Metric
from ottla.protocol.model.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def escaped(value: str) -> str:
    """Escapes a label value."""
    return value.translate(_ESCAPES)


class Page:
    """Collects the samples of one scrape."""

    def __init__(self, broker_id: int) -> None:
        self._broker_label = f'broker="{broker_id}"'
        self._lines: dict[Metric, list[str]] = {}

    def labels(self, names: Sequence[str], values: Sequence[object]) -> str:
        """Returns the text between the braces, built once for several metrics of the same object."""
        named = [f'{name}="{escaped(str(value))}"' for name, value in zip(names, values, strict=True)]
        return ",".join([self._broker_label, *named])

    def add(self, metric: Metric, value: float, *label_values: object) -> None:
        """Adds one sample."""
        self.add_line(metric, self.labels(metric.labels, label_values), value)

    def add_line(self, metric: Metric, labels: str, value: float) -> None:
        """Adds one sample with prepared labels."""
        lines = self._lines.get(metric)
        if lines is None:
            lines = self._lines[metric] = []
        lines.append(f"{metric.name}{{{labels}}} {value}\n")

    def add_histogram(self, metric: Metric, found: Histogram, *label_values: object) -> None:
        """Adds the buckets, sum and count of a histogram."""
        labels = self.labels(metric.labels, label_values)
        lines = self._lines.setdefault(metric, [])
        counts = list(accumulate(found.counts))
        for bound, count in zip(found.bounds, counts[:-1], strict=True):
            lines.append(f'{metric.name}_bucket{{{labels},le="{bound:.9g}"}} {count}\n')
        lines.append(f'{metric.name}_bucket{{{labels},le="+Inf"}} {counts[-1]}\n')
        lines.append(f"{metric.name}_sum{{{labels}}} {found.total:.9g}\n")
        lines.append(f"{metric.name}_count{{{labels}}} {counts[-1]}\n")

    def parts(self) -> Iterator[str]:
        """Yields the text metric by metric and drops it once yielded, because freeing a long page takes time too."""
        for metric in all_metrics():
            lines = self._lines.pop(metric, None)
            if lines is not None:
                yield f"# HELP {metric.name} {_help(metric)}\n# TYPE {metric.name} {metric.kind}\n" + "".join(lines)

    def text(self) -> str:
        """Returns the whole page as one string."""
        return "".join(self.parts())


def _help(metric: Metric) -> str:
    return metric.help.replace("\\", r"\\").replace("\n", r"\n")


def series_names(metric: Metric) -> list[str]:
    """Returns the sample names of a metric in the text."""
    if metric.kind is Kind.HISTOGRAM:
        return [metric.name + suffix for suffix in ("_bucket", "_sum", "_count")]
    return [metric.name]

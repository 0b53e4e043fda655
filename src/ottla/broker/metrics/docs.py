"""Renders `docs/reference/metrics.md` from the declarations."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.broker.metrics.definitions import SECTIONS
from ottla.broker.metrics.metric import Metric

_TITLE = """\
# Metrics

Generated from `src/ottla/broker/metrics/definitions.py` by `make docs`; do not edit.

Every broker serves a page of its own in Prometheus' text format, at `/metrics`:

    ottla up --metrics-port 9308             the first broker; the others take 9309, 9310, ...
    ottla.metrics.port=9308                  the same in a configuration file, also of `ottla broker --config`
    ottla.metrics.host=0.0.0.0               for a Prometheus on another machine; 127.0.0.1 without it

One broker is one target, so that `up` says which of them runs:

    scrape_configs:
      - job_name: ottla
        static_configs:
          - targets: ["127.0.0.1:9308", "127.0.0.1:9309", "127.0.0.1:9310"]

The page asks nobody for a password, and names topics and groups: let only Prometheus reach it. It is made in slices of
a millisecond, so that a long one delays no client. `deploy/prometheus/ottla-alerts.yml` has alerts and
`deploy/grafana/ottla-dashboard.json` a dashboard that are built on these names.

Every metric has the label `broker`, the broker's number, besides those that are listed. Counters begin with 0 when the
broker starts, those of a topic when the topic comes to it. Sums over brokers count nothing twice, but where the table
says "as this broker knows it": what leaders know is told by the leader alone, what belongs to the cluster by its
controller, what belongs to a group or a transaction by its coordinator.
"""


def render() -> str:
    """Returns the Markdown text."""
    parts = [_TITLE]
    for title, metrics in SECTIONS.items():
        parts += [f"## {title}", "", *_rows(metrics), ""]
    return "\n".join(parts)


def _rows(metrics: Iterable[Metric]) -> list[str]:
    lines = ["| name | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return lines

"""Renders `docs/reference/metrics.md` from the declarations."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.broker.metrics.definitions import SECTIONS
from ottla.broker.metrics.metric import Metric

_TITLE = """\
# Metrics

Generated from `src/ottla/broker/metrics/definitions.py` by `make docs`; do not edit.

Every broker serves its own page in the Prometheus text format, at `/metrics`:

    ottla up --metrics-port 9308             the first broker; the others use 9309, 9310, ...
    ottla.metrics.port=9308                  the same in a configuration file, also for `ottla broker --config`
    ottla.metrics.host=0.0.0.0               for a Prometheus on another machine; the default is 127.0.0.1

Each broker is a target, so that `up` shows which brokers are running:

    scrape_configs:
      - job_name: ottla
        static_configs:
          - targets: ["127.0.0.1:9308", "127.0.0.1:9309", "127.0.0.1:9310"]

The page requires no authentication and contains the names of topics and groups, so let only Prometheus reach it. The
broker renders it in slices of a millisecond, so that a long page delays no client.
`deploy/prometheus/ottla-alerts.yml` contains alerts that use these names, and `deploy/grafana/ottla-dashboard.json` a
dashboard.

Every metric has the label `broker`, the id of the broker, in addition to the labels in the table. Counters start at 0
when the broker starts; the counters of a topic start at 0 when the broker receives the topic. A sum over brokers counts
nothing twice, except where the table says "as this broker knows it": only the leader of a partition reports its state,
only the controller reports the state of the cluster, and only the coordinator reports the state of a group or a
transaction.
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

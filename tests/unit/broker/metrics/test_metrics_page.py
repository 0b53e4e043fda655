"""The text format for Prometheus, and its names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ottla.broker.metrics import definitions as declared
from ottla.broker.metrics.definitions import all_metrics
from ottla.broker.metrics.metric import Kind, Metric
from ottla.broker.metrics.page import Page, series_names
from ottla.broker.metrics.storage_metrics import group_sizes
from ottla.protocol.model.histogram import DURATION_BOUNDS_S, Histogram
from tests.support.metrics_reading import Scraped

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize("metric", list(all_metrics()), ids=lambda metric: str(metric.name))
def test_names_are_as_prometheus_wants_them(metric: Metric) -> None:
    assert re.fullmatch(r"ottla_[a-z][a-z_]*[a-z]", metric.name)
    assert (metric.kind is Kind.COUNTER) == metric.name.endswith("_total")
    assert metric.help.endswith(".")
    assert "|" not in metric.help, "it stands in a table"
    assert all(re.fullmatch(r"[a-z_]+", label) and label not in ("le", "broker") for label in metric.labels)
    if metric.kind is Kind.HISTOGRAM:
        assert metric.name.endswith(("_seconds", "_entries"))


def test_no_name_is_declared_twice() -> None:
    names = [name for metric in all_metrics() for name in series_names(metric)]
    assert len(set(names)) == len(names)
    constants = {value for value in vars(declared).values() if isinstance(value, Metric)}
    assert constants == set(all_metrics()), "every metric stands in a section"


@pytest.mark.parametrize("path", ["deploy/prometheus/ottla-alerts.yml", "deploy/grafana/ottla-dashboard.json"])
def test_alerts_and_dashboard_use_names_that_are_there(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".json"):
        assert json.loads(text)["panels"]
    used = set(re.findall(r"\bottla_\w+", text))
    assert len(used) > 10
    assert used <= {name for metric in all_metrics() for name in series_names(metric)}
    for metric in all_metrics():
        for labels in re.findall(rf"by \(([\w, ]+)\) \((?:rate\()?{metric.name}(?:_bucket)?\b", text):
            assert set(labels.split(", ")) <= {*metric.labels, "broker", "job", "le"}, metric.name


def test_a_value_on_a_bound_is_of_the_bucket_below() -> None:
    found = Histogram((1.0, 2.0, 5.0))
    for value in (0.0, 1.0, 1.5, 2.0, 5.0, 5.1, 100.0):
        found.note(value)
    assert found.counts == [2, 2, 1, 2]
    assert found.count == 7
    assert found.total == pytest.approx(114.6)


def test_many_at_once_are_as_many_times_one() -> None:
    one_by_one, at_once = Histogram(), Histogram()
    for _ in range(32):
        one_by_one.note(0.0007)
    at_once.note(0.0007, 32)
    assert at_once.counts == one_by_one.counts
    assert at_once.total == pytest.approx(one_by_one.total)
    at_once.add(one_by_one)
    assert at_once.count == 64


def test_a_histogram_reads_as_one() -> None:
    found = Histogram()
    for value_s in (0.00003, 0.00005, 0.0007, 60.0):
        found.note(value_s)
    page = Page(3)
    page.add_histogram(declared.REQUEST_SECONDS, found, "Produce")
    scraped = Scraped(page.text())
    assert scraped.kinds == {"ottla_request_seconds": "histogram"}
    buckets = {
        float(sample.labels["le"]): sample.value
        for sample in scraped.matching("ottla_request_seconds_bucket", broker="3", api="Produce")
    }
    assert len(buckets) == len(DURATION_BOUNDS_S) + 1
    assert (buckets[0.00005], buckets[0.0005], buckets[0.001], buckets[30.0]) == (2, 2, 3, 3)
    assert buckets[float("inf")] == scraped.value("ottla_request_seconds_count") == 4
    assert scraped.value("ottla_request_seconds_sum") == pytest.approx(60.00078)


def test_labels_may_hold_anything() -> None:
    name = 'a "quoted" \\ name\nof two lines'
    page = Page(1)
    page.add(declared.GROUP_LAG_RECORDS, 7, name, "topic", 0)
    (sample,) = Scraped(page.text()).matching("ottla_group_lag_records")
    assert sample.labels == {"broker": "1", "group": name, "topic": "topic", "partition": "0"}
    assert sample.value == 7


def test_a_label_too_few_is_a_bug() -> None:
    with pytest.raises(ValueError, match="zip"):
        Page(1).add(declared.GROUP_LAG_RECORDS, 7, "group")


def test_groups_of_the_journal_are_in_the_bucket_of_their_size() -> None:
    by_entries = [0] * 32
    sizes = [1, 2, 3, 4, 7, 8, 8191, 8192, 100_000]
    for entries in sizes:
        by_entries[entries.bit_length()] += 1
    found = group_sizes(by_entries, sum(sizes))
    expected = Histogram(found.bounds)
    for entries in sizes:
        expected.note(entries)
    assert found.counts == expected.counts
    assert found.total == expected.total

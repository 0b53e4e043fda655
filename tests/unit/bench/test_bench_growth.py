"""The benchmark of idle partitions: its topics, its rows and its table."""

from __future__ import annotations

import argparse

import pytest

from ottla.bench.growth.__main__ import cases_of, table_of
from ottla.bench.growth.cluster import BUSY_PARTITIONS, TOPIC_PARTITIONS, idle_topics
from ottla.bench.growth.measurements import GROUP, Case
from ottla.bench.results import Row


@pytest.mark.parametrize("partitions", [6, 7, 56, 57, 300, 10_000])
def test_idle_topics_bring_the_total_to_the_wanted_number(partitions: int) -> None:
    sizes = idle_topics(partitions).values()
    assert sum(sizes) + BUSY_PARTITIONS == partitions
    assert all(0 < size <= TOPIC_PARTITIONS for size in sizes)


def options(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{"quick": False, "partitions": None, "connections": None, "no_faults": False, **given})


def test_rows_of_partitions_come_first_and_only_they_have_faults() -> None:
    found = cases_of(options(partitions=(6, 300), connections=(0, 2000)))
    assert found == [Case(6), Case(300), Case(6, 2000, with_faults=False)]
    assert [case.name for case in found] == ["6 partitions", "300 partitions", "6 partitions, 2,000 connections"]


def test_a_quick_run_is_small() -> None:
    assert max(case.partitions for case in cases_of(options(quick=True))) == 300
    assert max(case.partitions for case in cases_of(options())) == 10_000


def test_a_table_shows_rows_that_lack_figures() -> None:
    first = Row(GROUP, "6 partitions", "", {"idle_core_share": 0.01, "sync_p99_us": 2000.0, "stop_s": 0.5})
    second = Row(GROUP, "300 partitions", "", {"idle_core_share": 0.2}, notes={"load": "TimeoutError"})
    assert table_of([first, second]).row_count == 2

"""Rates and ratios measured on a fast, a slow or an idle machine."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ottla.bench.charts import Range, range_chart
from ottla.bench.librdkafka_client import Traffic
from ottla.bench.librdkafka_client import figures_of as figures_of_client
from ottla.bench.quotients import per, rate, ratio, times_text
from ottla.bench.suite.loads import ProducerResult
from ottla.bench.suite.run_figures import produced_figures
from ottla.bench.transactional_load import TransactionResult as Transactional

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def script(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module


def test_a_rate_over_no_time_is_zero() -> None:
    assert rate(10, 2.0) == 5.0
    assert rate(10, 0.0) == 0.0
    assert rate(10, -0.1) == 0.0, "a clock on the wall may be set back"


def test_the_cost_of_one_out_of_none_is_zero() -> None:
    assert per(3.0, 2) == 1.5
    assert per(3.0, 0) == 0.0


def test_there_is_no_ratio_to_nothing() -> None:
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(3.0, 0.0) is None
    assert times_text(ratio(3000.0, 2.0), 1) == "1,500.0"
    assert times_text(None) == "?"


@pytest.mark.parametrize(("took_s", "cpu_s"), [(0.001, 0.0), (0.0, 0.0), (0.5, 0.4)])
def test_the_benchmark_of_recovery_compares_a_tail_that_took_no_time(took_s: float, cpu_s: float) -> None:
    recovery = script("recovery")
    full, tail = recovery.Row("full", 20_000, 0.4, 0.3), recovery.Row("tail", 200, took_s, cpu_s)
    assert "times faster" in recovery.comparison(full, tail, has_goal=True)
    assert tail.entries_per_s >= 0


def test_a_disk_that_finished_nothing_has_a_rate_of_zero() -> None:
    journal = script("journal")
    assert journal.result_of([], 1.2).requests_per_s == 0.0
    assert journal.result_of([0.5], 1.0).p99_ms == 500.0


def test_figures_of_a_run_in_which_nothing_happened() -> None:
    assert figures_of_client(Traffic(0, 0.0, 0.0), 100)["cpu_s_per_gb"] == 0.0
    assert Transactional().records_per_s == 0.0
    assert range_chart("nothing", [Range("a", "disk", 0.0, 0.0, 0.0)], "ms") == ""


class NoCosts:
    def cpu_s(self, group: str, begin_ns: int, end_ns: int) -> float:
        return 0.0

    def resident_bytes_max(self, group: str, begin_ns: int, end_ns: int) -> list[int]:
        return [1] if group == "brokers" else []


def test_figures_of_a_run_that_took_less_than_the_clock_shows() -> None:
    produced = ProducerResult(records=5, value_bytes=0, begin_ns=7, end_ns=7, offered=0, has_rate=True)
    figures = produced_figures([produced], NoCosts())
    assert figures["records_per_s"] == 0.0
    assert figures["behind_share"] == 0.0

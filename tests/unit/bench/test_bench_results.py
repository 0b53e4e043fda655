"""Figures, goals, tables, pages and JSON lines of the benchmark."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from ottla.bench.charts import Range, range_chart
from ottla.bench.latencies import median_percentiles, percentiles
from ottla.bench.pipeline import LoadResult
from ottla.bench.plan import chosen, steps_for
from ottla.bench.processes import (
    Worker,
    WorkFailedError,
    cpu_seconds,
    cpu_seconds_in_ticks,
    ending_with_us,
    resident_bytes,
)
from ottla.bench.report import write_report
from ottla.bench.results import RESULTS_FILE, Goal, Row, Run, append_rows, read_history, this_run
from ottla.bench.tables import print_failures, print_rows
from ottla.bench.throughput import Content, figures_of
from ottla.bench.workbench import FULL, QUICK, Workbench

RUN = Run("2026-01-01T00:00:00Z", "abc", "a machine <of> ours", "6.1", "3.11.7")


def rows() -> list[Row]:
    measured = LoadResult(1000, 1100, 1.0, 0.5, 0.1, {100: 990, 2000: 10})
    floor = LoadResult(2000, 2100, 1.0, 0.25, 0.1, {50: 2000})
    content = Content(value_bytes=10_000, record_count=10)
    figures = figures_of(content, [measured], [floor])
    return [
        Row("produce", "1 KB, 128 KB batches", "floor", figures_of(content, [floor], [floor])),
        Row("produce", "1 KB, 128 KB batches", "cache", figures, Goal("of the floor", 0.5, 0.7)),
        Row("single", "idle memory", "", {"mb": 41.5}, Goal("MB", 41.5, 60, is_upper=True)),
    ]


def test_percentiles_count_requests() -> None:
    latencies = {100: 980, 700: 15, 9000: 5}
    assert percentiles(latencies) == (100, 700, 9000)
    assert percentiles({}) == (0, 0, 0)


def test_one_disturbed_run_does_not_decide() -> None:
    assert median_percentiles([{10: 1}, {20: 1}, {90_000: 1}]).p50_us == 20


def test_figures_are_medians_and_shares_are_of_the_same_repetition() -> None:
    content = Content(value_bytes=1_000_000, record_count=10)
    runs = [LoadResult(100, 0, 1.0, 1.0), LoadResult(10, 0, 1.0, 0.1), LoadResult(200, 0, 1.0, 2.0)]
    floor = [LoadResult(200, 0, 1.0, 0.2), LoadResult(20, 0, 1.0, 0.02), LoadResult(200, 0, 1.0, 0.2)]
    figures = figures_of(content, runs, floor)
    assert figures["requests_per_s"] == 100
    assert figures["mb_per_s"] == pytest.approx(100)
    assert figures["records_per_s"] == 1000
    assert figures["share_of_floor"] == pytest.approx(0.5)
    assert figures["cpu_s_per_gb"] == pytest.approx(10)
    assert figures["cpu_to_floor"] == pytest.approx(10)


@pytest.mark.parametrize(
    ("goal", "met"), [(Goal("x", 0.7, 0.7), True), (Goal("x", 60, 60, is_upper=True), False), (Goal("x", 3, 20), False)]
)
def test_goals_are_shown_as_met_or_not(goal: Goal, met: bool) -> None:
    assert goal.met is met
    assert goal.text.endswith(": met" if met else ": not met")


def test_rows_are_kept_as_lines_with_commit_and_machine(tmp_path: Path) -> None:
    append_rows(tmp_path, RUN, rows())
    with (tmp_path / RESULTS_FILE).open("a") as file:
        file.write('{"name": "cut off by a cra')
    found = read_history(tmp_path)
    assert [row["name"] for row in found] == [row.name for row in rows()]
    assert {(row["commit"], row["machine"], row["python"], row["kernel"]) for row in found} == {
        (RUN.commit, RUN.machine, RUN.python, RUN.kernel)
    }
    assert found[1]["goal"]["met"] is False


def test_this_run_names_the_machine() -> None:
    assert "cores" in this_run().machine


def test_tables_show_every_row() -> None:
    out = io.StringIO()
    print_rows(Console(file=out, width=200), rows())
    assert "0.5 of the floor, goal >= 0.7: not met" in out.getvalue()
    assert "idle memory" in out.getvalue()


def test_the_report_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    append_rows(tmp_path, RUN, rows())
    append_rows(tmp_path, Run("2026-01-02T00:00:00Z", "def", "m", "6.1", "3.11.7"), rows())
    page = write_report(tmp_path / "report.html", RUN, rows(), read_history(tmp_path)).read_text()
    assert page.count("<svg") == page.count("</svg>") > 4
    assert "over 2 runs" in page
    assert "a machine &lt;of&gt; ours" in page
    assert not re.search(r"https?://|<script|<link|@import|src=", page)


def test_a_plot_of_equal_values_has_an_axis() -> None:
    assert "1 ms" in range_chart("title", [Range("a", "disk", 1.0, 1.0, 1.0)], "ms")


def test_steps_are_chosen_by_name_and_fit_into_their_time(tmp_path: Path) -> None:
    with Workbench(tmp_path, FULL, lambda seconds, what: None) as bench:
        full = steps_for(bench, quick=False)
        assert {step.name for step in chosen(full, "^produce 1 KB")} < {step.name for step in full}
        assert chosen(full, None) == full
        assert sum(step.estimate_s for step in full) < 500
    with Workbench(tmp_path, QUICK, lambda seconds, what: None) as bench:
        quick = steps_for(bench, quick=True)
        assert {step.name for step in quick} == {step.name for step in full}
        assert sum(step.estimate_s for step in quick) < 130
    assert not list(tmp_path.iterdir()), "a workbench takes its data with it"


def test_a_worker_runs_functions_in_another_process() -> None:
    with Worker() as worker:
        pid = worker.call(_pid)
        assert pid != _pid()
        assert cpu_seconds(pid) > 0
        assert abs(cpu_seconds(pid) - cpu_seconds_in_ticks(pid)) < 0.2
        assert resident_bytes(pid) > 1_000_000
        with pytest.raises(WorkFailedError, match="ZeroDivisionError"):
            worker.call(divmod, 1, 0)
        assert worker.call(_pid) == pid


def _pid() -> int:
    import os

    return os.getpid()


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv here")
def test_what_a_killed_process_started_ends_with_it() -> None:
    source = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", source, *ending_with_us(["sleep", "600"])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        while b"sleep" not in Path(f"/proc/{child}/comm").read_bytes():
            time.sleep(0.01)
        parent.kill()
    while Path(f"/proc/{child}/cmdline").exists() and Path(f"/proc/{child}/cmdline").read_bytes():
        time.sleep(0.01)


def test_steps_that_could_not_be_measured_come_first(tmp_path: Path) -> None:
    failures = ["fetch 1 KB: no <room>"]
    page = write_report(tmp_path / "report.html", RUN, rows(), [], failures).read_text()
    assert page.index("1 step could not be measured") < page.index("no &lt;room&gt;") < page.index("<svg")
    console = Console(file=io.StringIO(), width=200)
    print_failures(console, failures)
    print_failures(console, [])
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == ["1 step could not be measured", "  fetch 1 KB: no <room>"]

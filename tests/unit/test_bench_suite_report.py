"""The report of made-up results: ratios, goals, curves, the ranking, the page and the comparison of two runs."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from ottla.bench.suite.comparison import compare_results
from ottla.bench.suite.csv_file import write_csv
from ottla.bench.suite.page import write_page
from ottla.bench.suite.plots import linear_axis, log_axis
from ottla.bench.suite.results_of_run import Results
from ottla.bench.suite.settings import DEFAULTS, Value
from ottla.bench.suite.terminal import print_results
from ottla.bench.suite.views import latency_curves, throughput_groups

RUN = {"at": "2026-01-01T00:00:00Z", "commit": "abc", "machine": "m", "kernel": "k", "load_before": 0.1}


def cell(key: str, target: str, repetition: int, figures: dict[str, float], **changes: Value) -> dict[str, Any]:
    configuration = {**DEFAULTS, **{name.replace("__", "."): value for name, value in changes.items()}}
    return {
        **RUN, "kind": "cell", "key": key, "label": f"row {key}", "target": target, "target_key": target,
        "repetition": repetition, "configuration": configuration, "figures": figures, "measured_at": "now",
    }  # fmt: skip


def matrix_line(goals: dict[str, list[str]]) -> dict[str, Any]:
    rows = [{"key": key, "label": f"row {key}", "goals": texts} for key, texts in goals.items()]
    return {
        **RUN, "kind": "matrix", "name": "made <up>", "about": "nothing real", "subject": "ottla", "peer": "kafka",
        "rows": rows, "targets": [{"name": "ottla"}, {"name": "kafka"}],
        "left_out": [{"target": "kafka", "label": "row z", "reason": "it cannot"}],
    }  # fmt: skip


def made_up(speed: float = 1.0) -> list[dict[str, Any]]:
    """Kafka's machine is three times as busy in the second repetition, and so is Ottla's."""
    lines: list[dict[str, Any]] = [matrix_line({"a": ["records_per_s >= 1.5"], "b": ["p99_us <= 0.5"]})]
    for repetition, noise in enumerate((1.0, 3.0)):
        for target, rate, p99 in (("ottla", 3000.0, 800.0), ("kafka", 1000.0, 1000.0)):
            for key, mode, share in (("a", "async", 1.0), ("b", "sync", 0.2)):
                records_per_s = speed * rate * share / noise
                figures = {"records_per_s": records_per_s, "mb_per_s": records_per_s / 1000, "p99_us": p99}
                lines.append(cell(key, target, repetition, figures, producer__mode=mode))
    facts = {"software": "Ottla 1", "settings": {"a.b": "c"}}
    figures = {"start_s": 1.5, "idle_memory_mb": 50.0}
    return [*lines, {**RUN, "kind": "start", "target": "ottla", "storage": "disk", "figures": figures, "facts": facts}]


def test_ratios_are_of_each_repetition_and_meet_their_goals() -> None:
    found = {each.key: each for each in Results(made_up()).ratios()}
    assert found["a"].ratio == pytest.approx((3.0, 3.0, 3.0))
    assert found["a"].goal is not None
    assert found["a"].goal.is_met(found["a"].ratio.ratio)
    assert found["b"].figure == "p99_us"
    assert found["b"].goal is not None
    assert not found["b"].goal.is_met(found["b"].ratio.ratio)


def test_csv_has_every_measurement_with_its_configuration(tmp_path: Path) -> None:
    with write_csv(tmp_path, Results(made_up())).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert rows[0]["producer.mode"] == "async"
    assert float(rows[0]["records_per_s"]) == 3000


def test_the_page_has_everything_and_nothing_from_elsewhere(tmp_path: Path) -> None:
    text = write_page(tmp_path, Results(made_up())).read_text(encoding="utf-8")
    assert "<h1>made &lt;up&gt;</h1>" in text
    for part in (
        "Against kafka",
        "Throughput over repetitions",
        "Which setting matters",
        "it cannot",
        "a.b=c",
        "missed",
    ):
        assert part in text
    assert not re.search(r"https?://|<script|<link|@import|url\(", text)
    assert text.count("<svg") == text.count("</svg>") == 5


def test_the_terminal_has_ratios_and_goals(capsys: pytest.CaptureFixture[str]) -> None:
    print_results(Results(made_up()))
    printed = capsys.readouterr().out
    assert "ottla / kafka" in printed
    assert ">= 1.5: met" in printed
    assert "<= 0.5: missed" in printed
    assert "left out: kafka: row z: it cannot" in printed


def test_curves_are_of_cells_that_differ_in_their_rate_alone(tmp_path: Path) -> None:
    figures = {"p50_us": 100.0, "p99_us": 200.0, "p999_us": 300.0, "behind_share": 0.0, "records_per_s": 1.0}
    behind = {**figures, "behind_share": 0.5}
    lines = [
        cell("x3", "ottla", 0, behind, producer__rate=300),
        cell("x1", "ottla", 0, figures, producer__rate=100),
        cell("x1", "kafka", 0, figures, producer__rate=100),
        cell("y1", "ottla", 0, figures, producer__rate=100, producer__acks=1),
        cell("z", "ottla", 0, figures),
    ]
    results = Results(lines)
    ((ottla, kafka),) = latency_curves(results)
    assert [each.configuration["producer.rate"] for each in ottla.cells] == [100, 300]
    assert len(kafka.cells) == 1
    assert "Hollow points" in write_page(tmp_path, results).read_text(encoding="utf-8")


def test_many_lines_are_split_by_what_differs_most() -> None:
    """As the first two plots of a benchmark of acks: sync and async have one each."""
    lines = [
        cell(f"{mode}{at}", "ottla", 0, {"records_per_s": 10.0 * scale + at, "mb_per_s": 1.0}, producer__mode=mode,
             producer__linger_ms=at)
        for mode, scale in (("sync", 1), ("async", 100)) for at in range(6)
    ]  # fmt: skip
    groups = throughput_groups(Results(lines))
    assert [group.title for group in groups] == ["ottla: sync", "ottla: async"]
    assert [len(group.cells) for group in groups] == [6, 6]


def test_a_change_counts_if_runs_do_not_overlap() -> None:
    same = compare_results(Results(made_up()), Results(made_up()))
    assert {change.verdict for change in same} == {"within the noise"}
    faster = compare_results(Results(made_up()), Results(made_up(speed=10.0)))
    assert {change.verdict for change in faster if change.figure == "records_per_s"} == {"better"}
    slower = compare_results(Results(made_up(speed=10.0)), Results(made_up()))
    assert {change.verdict for change in slower if change.figure == "records_per_s"} == {"worse"}


def test_a_later_failure_does_not_hide_what_was_measured() -> None:
    failed = {**cell("a", "ottla", 2, {}, producer__mode="async"), "failure": "gone"}
    results = Results([*made_up(), failed])
    assert results.cells["a", "ottla"].failures == ["gone"]
    found = results.cells["a", "ottla"].summary("records_per_s")
    assert found is not None
    assert found.repetitions == 2


@pytest.mark.parametrize("values", [[0.3], [7, 42], [1e6], [0.001, 5000]])
def test_axes_hold_their_values(values: list[float]) -> None:
    for axis in (linear_axis(values), log_axis(values)):
        assert all(-0.01 <= axis.place(value) <= 1.01 for value in values)
        assert 2 <= len(axis.ticks) <= 11


def test_a_goal_of_its_own_is_the_figure_itself() -> None:
    shares = {"share_of_row": 0.95}
    lines = [
        matrix_line({"a": ["own share_of_row >= 0.9"]}),
        cell("a", "ottla", 0, shares),
        cell("a", "kafka", 0, shares),
    ]
    (found,) = Results(lines).ratios()
    assert found.ratio.ratio == 0.95
    assert found.goal is not None
    assert found.goal.text == "own share_of_row >= 0.9"
    assert found.goal.is_met(found.ratio.ratio)


def test_starts_have_goals_too() -> None:
    first = {**matrix_line({}), "start_goals": ["start_s <= 0.2"]}
    starts = [
        {**RUN, "kind": "start", "target": target, "storage": "disk", "figures": {"start_s": seconds}, "facts": {}}
        for target, seconds in (("ottla", 1.0), ("kafka", 10.0), ("kafka", 12.0))
    ]
    ottla, kafka = cell("a", "ottla", 0, {}), cell("a", "kafka", 0, {})
    (found,) = Results([first, *starts, ottla, kafka]).ratios()
    assert found.ratio.ratio == pytest.approx(1 / 11)
    assert found.goal is not None
    assert found.goal.is_met(found.ratio.ratio)

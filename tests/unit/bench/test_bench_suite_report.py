"""The report of sample results: ratios, goals, curves, the ranking, the page and the comparison of two runs."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from ottla.bench.suite.comparison import compare_results
from ottla.bench.suite.csv_file import write_csv
from ottla.bench.suite.failures import failures_of
from ottla.bench.suite.page import write_page
from ottla.bench.suite.plots import linear_axis, log_axis
from ottla.bench.suite.run_results import Results
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
    """In the second repetition both Kafka's and Ottla's machine are three times as busy."""
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
        "Throughput of ottla, in MB/s of acknowledged records",
        "ottla / kafka, median of the repetitions",
        "Effect of each setting",
        "it cannot",
        "a.b=c",
        "missed",
    ):
        assert part in text
    assert not re.search(r"https?://|<script|<link|@import|url\(", text)
    assert text.count("<svg") == text.count("</svg>") == 5


def plots_of(page: str) -> dict[str, str]:
    """Returns the plots by title."""
    return {
        str(re.findall(r'aria-label="([^"]*)"', part)[0]): part for part in re.findall(r"<svg.*?</svg>", page, re.S)
    }


def legend_of(plot: str) -> list[str]:
    return re.findall(r'<g class="legend".*?<text[^>]*>([^<]*)</text></g>', plot)


def test_repetitions_are_points_with_a_median_and_a_legend_and_no_line_joins_them(tmp_path: Path) -> None:
    page = write_page(tmp_path, Results(made_up())).read_text(encoding="utf-8")
    plot = plots_of(page)["Throughput of ottla, in MB/s of acknowledged records"]
    assert "<polyline" not in plot
    assert plot.count('class="hollow s0"') == 2 * 2 + 1, "each repetition of both rows, and the legend's"
    assert legend_of(plot) == ["median", "one repetition", "lowest to highest"]
    assert "2 (1 to 3)" in plot, "the median of row a, with its range"


def test_failures_come_first(tmp_path: Path) -> None:
    failed = {**cell("a", "ottla", 2, {}, producer__mode="async"), "failure": "broker <1> ended"}
    page = write_page(tmp_path, Results([*made_up(), failed])).read_text(encoding="utf-8")
    assert page.index("1 row failed") < page.index("<svg")
    assert page.index("broker &lt;1&gt; ended") < page.index("Against kafka")
    assert page.index("it cannot") > page.rindex("</svg>"), "what was left out on purpose is no failure"
    assert "row failed" not in write_page(tmp_path, Results(made_up())).read_text(encoding="utf-8")


def test_titles_labels_and_legends_are_complete(tmp_path: Path) -> None:
    long = "three brokers, three replicas, acks=all, 1 KB records in batches of 128 KB, lz4, 24 partitions, a consumer"
    lines = [{**line, **({"label": long} if line["kind"] == "cell" else {})} for line in made_up()]
    page = write_page(tmp_path, Results(lines)).read_text(encoding="utf-8")
    assert "…" not in page
    for title, plot in plots_of(page).items():
        words = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", plot))
        assert long in words or "share of the variation" in title
        assert f"<figcaption>{title}</figcaption>" in page
    ratios = legend_of(plots_of(page)["ottla / kafka, median of the repetitions"])
    assert ratios == ["median, goal met", "median, goal missed", "lowest to highest", "goal"]


def test_the_terminal_has_ratios_and_goals(capsys: pytest.CaptureFixture[str]) -> None:
    print_results(Results(made_up()))
    printed = capsys.readouterr().out
    assert "ottla / kafka" in printed
    assert ">= 1.5: met" in printed
    assert "<= 0.5: missed" in printed
    assert "skipped: kafka: row z: it cannot" in printed


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
    plots = plots_of(write_page(tmp_path, results).read_text(encoding="utf-8"))
    latency = next(plot for title, plot in plots.items() if title.startswith("Latency of an acknowledgement"))
    assert legend_of(latency) == [
        *(f"{target} {name}" for target in ("ottla", "kafka") for name in ("p50", "p99", "p99.9")),
        "Hollow points: the target did not accept the whole offered load",
    ]


def test_many_lines_are_split_by_what_differs_most() -> None:
    """As the first two plots of a benchmark of acks: one for sync and one for async."""
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


def failed_line(key: str, target: str, repetition: int, reason: str) -> dict[str, Any]:
    line = cell(key, target, repetition, {}, producer__mode="async")
    del line["figures"]
    return {**line, "failure": reason}


def with_failures() -> Results:
    """Row b has no measurement on Ottla, and row a has a failed repetition."""
    lines = [
        line for line in made_up() if (line.get("key"), line["kind"]) != ("b", "cell") or line["target"] != "ottla"
    ]
    failures = [failed_line("b", "ottla", at, "[Errno 29] Illegal <seek>") for at in (0, 1)]
    return Results([*lines, *failures, failed_line("a", "kafka", 2, "gone")])


def test_the_terminal_begins_with_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    print_results(with_failures())
    printed = capsys.readouterr().out
    first = printed.strip().splitlines()[:3]
    assert first[0] == "2 rows failed"
    assert first[1].strip() == "ottla: row b: [Errno 29] Illegal <seek> (2 of 2 repetitions)"
    assert first[2].strip() == "kafka: row a: gone (1 of 3 repetitions)"
    assert printed.count("Illegal") == 1


def test_the_page_begins_with_what_failed(tmp_path: Path) -> None:
    text = write_page(tmp_path, with_failures()).read_text(encoding="utf-8")
    assert text.index("2 rows failed") < text.index("Illegal &lt;seek&gt;") < text.index("Against kafka")
    assert text.count("Illegal") == 1


def test_a_row_that_failed_stays_in_the_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = with_failures()
    print_results(results)
    printed = capsys.readouterr().out
    ratios = printed[printed.index("ottla / kafka") :]
    assert re.search(r"row b +ottla failed", ratios)
    figures = printed[printed.index("writing") : printed.index("ottla / kafka")]
    assert re.search(r"^ +ottla +failed", figures, re.MULTILINE), "below the figures of kafka in that row"
    text = write_page(tmp_path, results).read_text(encoding="utf-8")
    against = text[text.index("Against kafka") : text.index("<h2>Throughput")]
    assert re.search(r"<tr><td>row b</td><td[^>]*>ottla failed", against)


def test_a_failure_that_was_measured_again_is_none() -> None:
    results = Results([failed_line("a", "ottla", 0, "gone"), *made_up()])
    assert failures_of(results) == []


def test_a_target_that_could_not_be_started_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = {**RUN, "kind": "unavailable", "target": "kafka", "storage": "disk", "reason": "no java"}
    ottla = [line for line in made_up() if line.get("target") != "kafka"]
    results = Results([*ottla, line])
    print_results(results)
    assert capsys.readouterr().out.strip().splitlines()[:2] == ["1 row failed", "  kafka on disk: no java"]
    assert "no java" in write_page(tmp_path, results).read_text(encoding="utf-8")
    start = {**RUN, "kind": "start", "target": "kafka", "storage": "disk", "figures": {}, "facts": {"software": "K"}}
    assert failures_of(Results([*ottla, line, start])) == [], "it was started later"


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

"""Runs `python -m ottla.demo` with fewer records: it proves its claims, and its exit status tells whether it did."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ottla.demo.__main__ import _pipeline
from ottla.demo.customers import a_day
from ottla.demo.page import Demo, write_page
from ottla.demo.plot import rates_of
from ottla.demo.results import CrashResults, Sample
from ottla.spark.jvm.java import JavaMissingError, find_java

RECORDS = 30_000


def has_spark() -> bool:
    try:
        find_java()
        import pyspark  # noqa: F401 - checks that it is installed
    except (JavaMissingError, ImportError):
        return False
    return True


def test_the_demo_proves_its_point(tmp_path: Path) -> None:
    plot = tmp_path / "demo.html"
    command = [sys.executable, "-m", "ottla.demo", "--records", str(RECORDS), "--seed", "7", "--plot", str(plot)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every acknowledged record is there, once and in order." in done.stdout
    rows = dict(re.findall(r"^│ ([a-z][^│]*?) +│ +([^│]*?) │$", done.stdout, re.MULTILINE))
    assert int(rows["acknowledged"].replace(",", "")) == int(rows["read"].replace(",", "")) >= RECORDS + 6
    assert [rows[name] for name in ("missing", "doubled", "reordered", "misplaced")] == ["0"] * 4
    assert "is killed with -9, the leader of partitions" in done.stdout
    assert "has everything again" in done.stdout
    assert "acknowledged values are there." in " ".join(done.stdout.split())
    page = plot.read_text(encoding="utf-8")
    assert f"{RECORDS:,} records, a killed leader, then three killed brokers" in page
    assert "Every acknowledged record is there, once and in order." in page
    assert re.search(r"broker \d is killed, \d+\.\d s", page), "the kill is in the plot"
    assert page.index("is killed, ") < page.index("new leaders, ") < page.index("in sync again, ")
    assert re.search(r"<b>30,0\d\d</b>acknowledged</li><li><b>30,0\d\d</b>read back</li><li><b>0</b>missing", page)
    assert "A key-value store whose only durability is a log" in page
    assert not re.search(r"https?://|<script|<link|@import|url\(", page), "nothing from elsewhere"
    if not has_spark():
        assert "The pipeline is skipped" in done.stdout
        assert "The pipeline is skipped" in page
        return
    assert "The restored table is identical to the original, row by row" in done.stdout
    assert "leaves 0 in the log" in done.stdout
    assert f"restored: {len(a_day(7, 0).before):,}" in page
    assert page.count("<polyline") == 2


def test_without_java_the_demo_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    console = Console(record=True, width=500)
    demo = Demo(CrashResults(RECORDS), seed=7)
    assert _pipeline(console, "127.0.0.1:1", tmp_path, demo)
    said = console.export_text()
    assert "The pipeline is skipped. Spark needs Java 17 or later" in said
    assert "Install" in said
    page = write_page(tmp_path / "demo.html", demo).read_text(encoding="utf-8")
    assert "Spark needs Java 17 or later" in page


def test_a_day_is_the_same_for_the_same_seed_and_its_bad_job_halves_the_table() -> None:
    day = a_day(3, 0, changes_a_minute=5)
    assert day == a_day(3, 0, changes_a_minute=5)
    table: dict[int, str] = {}
    for change in day.changes:
        if change.timestamp_ms == day.bad_job_ms and table == day.before:
            assert change.row is None
        if change.row is None:
            del table[change.id]
        else:
            table[change.id] = change.row
    assert table == day.after
    assert day.bad_job_deleted == (len(day.before) + 1) // 2
    assert [each.timestamp_ms for each in day.changes] == sorted(each.timestamp_ms for each in day.changes)


def test_rates_are_of_the_time_between_samples() -> None:
    samples = [Sample(0.0, 0), Sample(1.0, 100), Sample(3.0, 100), Sample(4.0, 500)]
    assert rates_of(samples, 4) == [(0.5, 100.0), (1.5, 0.0), (2.5, 0.0), (3.5, 400.0)]
    assert rates_of(samples[:1], 4) == []

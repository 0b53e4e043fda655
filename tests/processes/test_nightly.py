"""The nightly command: its report, and a night of one short siege and one seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.nightly import REPORT, Night, Row, report
from tests.processes.siege.cluster import MEMORY, Shape
from tests.processes.siege.runs import SHAPES, parse_shape

GOOD = Row("siege: 3 brokers", 60.0, 120_000, "operations", {"kill": 12, "pause": 3})
BAD = Row("simulation: groups", 5.0, 900, "commits", {}, {"lost": 2}, "seed 7: lost: offset 3", "replay 7")


def test_the_report_names_faults_and_anomalies() -> None:
    text = report([GOOD, BAD], "Night", is_over=True)
    assert "2 parts, 1 of them with anomalies.\n" in text
    assert "| siege: 3 brokers | 60.0 | 120,000 operations | 15: kill 12, pause 3 | none |" in text
    assert "| simulation: groups | 5.0 | 900 commits | none | **lost 2** |" in text
    assert "## simulation: groups\n\nseed 7: lost: offset 3\n\nEvidence: `replay 7`" in text


def test_the_report_is_written_after_each_part(tmp_path: Path) -> None:
    night = Night(tmp_path)
    night.add(GOOD)
    assert "1 parts, 0 of them with anomalies. It is not over yet." in (tmp_path / REPORT).read_text()
    assert night.ok
    night.add(BAD)
    assert not night.ok
    assert "not over yet" not in night.write(is_over=True).read_text()


def test_shapes_by_name() -> None:
    assert parse_shape("5,etcd") == Shape(5, "etcd")
    assert parse_shape("3,zookeeper,memory") == Shape(3, "zookeeper", MEMORY)
    for text in ("", "3", "3,redis", "two,etcd", "3,etcd,paper", "1,sqlite"):
        with pytest.raises(ValueError, match="is not a shape"):
            parse_shape(text)


def test_all_machines_lose_the_power_in_a_third_of_the_shapes() -> None:
    assert 3 * sum(shape.classes == "power" for shape in SHAPES) >= len(SHAPES)


@pytest.mark.timeout(600)
def test_a_short_night(tmp_path: Path) -> None:
    night = tmp_path / "night"
    what = ["--shape", "3,sqlite", "--only", "kill", "--minutes", "0", "--kind", "log", "--seeds", "1", "--jobs", "1"]
    command = [sys.executable, "-m", "tests.processes.nightly", *what, "--seed", "1", "--directory", str(night)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    text = (night / REPORT).read_text()
    assert "2 parts, 0 of them with anomalies.\n" in text
    assert "| siege: 3 brokers, sqlite, topics of the class disk and cache, seed 1 |" in text
    assert "kill 1" in text
    assert "| simulation: log, " in text
    assert not (night / "3-sqlite-kept").exists(), "a siege without anomalies leaves nothing"

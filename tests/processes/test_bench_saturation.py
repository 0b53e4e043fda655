"""Runs `python -m ottla.bench.saturation` briefly to its end; it must account for every record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "ottla.bench.saturation"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=250, check=False)


def test_two_rows_are_measured_and_recorded(tmp_path: Path) -> None:
    done = run("--only", "^10 KB, 10 partitions, idempotent, 0.5x", "--seconds", "0.5", "--results", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "broker.jsonl").read_text().splitlines()]
    names = ["10 KB, 10 partitions, idempotent, peak", "10 KB, 10 partitions, idempotent, 0.5x"]
    assert [line["case"] for line in lines] == names
    for line in lines:
        figures = line["figures"]
        assert line["commit"] is not None
        assert line["machine"]
        assert line["subject"] == "disk"
        assert figures["acknowledged"] > 0
        assert figures["lost"] == 0
        assert figures["probe_count"] > 0
        assert figures["produce_count"] > 0
        assert figures["ended_brokers"] == 0
    assert lines[1]["figures"]["factor"] == 0.5
    assert "At any offered load:" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["broker.jsonl"], "no data is left"


def test_a_pattern_without_rows_starts_nothing(tmp_path: Path) -> None:
    done = run("--only", "2 KB", "--results", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "no row matches '2 KB'" in done.stdout
    assert not (tmp_path / "none").exists()

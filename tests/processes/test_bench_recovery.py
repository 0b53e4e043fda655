"""Runs a small `benchmarks/recovery.py` to its end; every state must equal that of a full replay."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "recovery.py"


def test_the_benchmark_of_recovery_runs(tmp_path: Path) -> None:
    results = tmp_path / "rows.jsonl"
    command = [sys.executable, str(BENCHMARK), "--records", "20000", "--keys", "500", "--data", str(tmp_path)]
    done = subprocess.run([*command, "--json", str(results)], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["step"]: row for row in map(json.loads, results.read_text().splitlines())}
    assert rows["kv: full replay"]["entries"] == 20_000
    assert rows["kv: snapshot + tail"]["entries"] == 200
    assert rows["SQLite, images: full replay"]["entries"] == 2000
    assert rows["SQLite, statements: snapshot + tail"]["entries"] == 20
    assert all("the same state" in row["note"] for step, row in rows.items() if "tail" in step)
    assert "20000/20000" in done.stdout, "progress is shown"

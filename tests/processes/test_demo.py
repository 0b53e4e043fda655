"""`python -m ottla.demo`, with fewer records: it proves what it says, and its end says whether it did."""

from __future__ import annotations

import re
import subprocess
import sys

RECORDS = 30_000


def test_the_demo_proves_its_point() -> None:
    command = [sys.executable, "-m", "ottla.demo", "--records", str(RECORDS), "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every acknowledged record is there, once and in order." in done.stdout
    rows = dict(re.findall(r"^│ ([a-z][^│]*?) +│ +([^│]*?) │$", done.stdout, re.MULTILINE))
    assert int(rows["acknowledged"].replace(",", "")) == int(rows["read"].replace(",", "")) >= RECORDS + 6
    assert [rows[name] for name in ("missing", "doubled", "reordered", "misplaced")] == ["0"] * 4
    assert "is killed with -9, the leader of partitions" in done.stdout
    assert "has everything again" in done.stdout

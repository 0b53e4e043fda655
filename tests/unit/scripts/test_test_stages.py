"""`scripts/test_stages.py`, which `make test` calls, runs every stage and reports the result of each at the end."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "test_stages.py"
HAS_MAKE = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

MAKEFILE = """
good:
	@printf '...\\n======= 3 passed, 1 skipped, 2 warnings in 0.10s =======\\n'
bad:
	@printf '== short test summary info ==\\nFAILED tests/a.py::test_b - oh\\n1 failed, 2 passed in 61.00s (0:01:01)\\n'
	@exit 1
broken:
	@echo no rule for this; exit 3
colour:
	@printf '\\033[32m== \\033[32m\\033[1m5 passed\\033[0m\\033[32m in 0.01s\\033[0m ==\\n$(SEEN)\\n'
slow:
	@touch started; sleep 60
"""


def load() -> ModuleType:
    found = importlib.util.spec_from_file_location("test_stages_script", SCRIPT)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module


stages = load()


def run(directory: Path, *targets: str) -> subprocess.CompletedProcess[str]:
    (directory / "Makefile").write_text(MAKEFILE)
    command = [sys.executable, str(SCRIPT), *targets]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False)


def rows(printed: str) -> dict[str, list[str]]:
    """Returns the cells of the table by stage."""
    table = printed[printed.index("stage  ") :].splitlines()[1:]
    return {cells[0]: cells[1:6] for line in table if len(cells := line.split()) >= 6}


@HAS_MAKE
def test_all_stages_run_after_a_failure_and_the_code_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, "bad", "good")
    assert done.returncode == 1
    assert rows(done.stdout)["bad"] == ["FAILED", "2", "1", "0", "0"]
    assert rows(done.stdout)["good"] == ["passed", "3", "0", "0", "1"]
    *_, failure, total = done.stdout.splitlines()
    assert failure == "FAILED tests/a.py::test_b - oh"
    assert re.fullmatch(r"===== 1 failed, 5 passed, 1 skipped, 2 warnings in [\d.]+s =====", total)


@HAS_MAKE
def test_success_needs_every_stage(tmp_path: Path) -> None:
    done = run(tmp_path, "good", "colour SEEN=yes")
    assert done.returncode == 0
    assert "\nyes\n" in done.stdout, "variables reach make"
    assert re.search(r"^===== 0 failed, 8 passed, 1 skipped", done.stdout.splitlines()[-1])


@HAS_MAKE
def test_a_stage_that_ends_without_tests_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, "broken", "nowhere", "good")
    assert done.returncode == 1
    assert rows(done.stdout)["broken"] == ["FAILED", "0", "0", "1", "0"]
    assert "ERROR broken ended with exit code 2, but no tests were reported: see its output" in done.stdout
    assert "0 failed, 3 passed, 1 skipped, 2 warnings, 2 errors" in done.stdout.splitlines()[-1]


@HAS_MAKE
def test_an_interrupt_ends_the_stage_and_sums_up_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    command = [sys.executable, str(SCRIPT), "good", "slow", "bad"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "started").exists():
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGTERM)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert rows(printed)["good"][0] == "passed"
    assert rows(printed)["slow"][0] == "FAILED"
    assert re.search(r"^bad +not run", printed, re.MULTILINE)


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("= 2 failed, 10 passed, 1 error in 3.21s =", {"failed": 2, "passed": 10, "errors": 1}),
        ("1 passed in 0.01s", {"passed": 1}),
        ("4 passed, 3 deselected, 1 warning in 100.00s (0:01:40)", {"passed": 4, "deselected": 3, "warnings": 1}),
        ("wrote 5 passed in time", {}),
        ("no tests ran in 0.01s", {}),
    ],
)
def test_lines_of_pytest(line: str, counts: dict[str, int]) -> None:
    stage = stages.Stage("a")
    stage.take_line(line)
    assert dict(stage.counts) == counts


def test_errors_in_a_log_are_no_failed_tests() -> None:
    stage = stages.Stage("a")
    stage.take_line("ERROR    ottla:broker.py:12 the disk is full")
    stage.take_line("1 passed in 0.01s")
    assert stage.failed_tests == []


def test_make_test_runs_the_three_stages() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = text[text.index("\ntest: ") :].split("\n\n")[0]
    assert re.findall(r"test-\w+", recipe) == ["test-fast", "test-real", "test-spark"]
    assert "scripts/test_stages.py" in recipe

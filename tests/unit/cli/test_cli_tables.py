"""Tables fit the terminal or COLUMNS; output to a pipe has every value in full."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from ottla.cli.output import print_table

LONG = "value-" + "x" * 300
COMMAND = [sys.executable, "-m", "ottla"]


def test_a_pipe_gets_a_row_on_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(["name", "value"], [("one", LONG), ("two", "short")])
    assert [line.split() for line in capsys.readouterr().out.splitlines() if "one" in line] == [["one", LONG]]


@pytest.mark.parametrize("columns", [40, 100])
def test_columns_are_respected(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table(["name", "value"], [("one", LONG)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert "".join(line.split()[-1] for line in lines if "x" in line).endswith("x" * 300)


def test_a_narrow_window_loses_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "4")
    print_table(["a", "b", "c", "d", "e"], [("1", "2", "3", "4", "5")])
    printed = capsys.readouterr().out
    assert all(digit in printed for digit in "12345")


@pytest.mark.parametrize("columns", ["wide", "-1", "0", ""])
def test_columns_that_are_no_number(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    print_table(["name", "value"], [("one", LONG)])
    assert LONG in capsys.readouterr().out


def complete(shell: str, **variables: str) -> str:
    environment = {**os.environ, "_OTTLA_COMPLETE": f"complete_{shell}", **variables}
    return subprocess.run(COMMAND, env=environment, capture_output=True, text=True, timeout=60, check=False).stdout


def test_completion() -> None:
    assert complete("bash", COMP_WORDS="ottla topi", COMP_CWORD="1").split() == ["topics"]
    assert complete("bash", COMP_WORDS="ottla topics cr", COMP_CWORD="2").split() == ["create"]
    assert "--partitions" in complete("zsh", _TYPER_COMPLETE_ARGS="ottla topics create --part")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script(shell: str) -> None:
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = subprocess.run(
        [*COMMAND, "--show-completion", shell], env=environment, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert "_OTTLA_COMPLETE" in script
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, timeout=60, check=True)


def test_the_completion_script_in_bash() -> None:
    """Bash itself runs the function that the script defines."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    directory = os.path.dirname(sys.executable)
    run = f'''PATH="{directory}:$PATH"; source <(_OTTLA_COMPLETE=source_bash ottla)
COMP_WORDS=(ottla topics des); COMP_CWORD=2; _ottla_completion ottla; echo "${{COMPREPLY[@]}}"'''
    done = subprocess.run([bash, "-c", run], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "describe"

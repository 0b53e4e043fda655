"""The README, typed as it stands: its commands in their order, its scripts, and the output that it shows.

Two things differ from a terminal of a reader. The ports are free ones instead of 9092 and the next two. `make` is a
stand-in that checks the target, because `test_demo` runs the demo.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ottla.spark.java import JavaMissingError, find_java
from ottla.testing.ports import reserve_ports
from tests.pages import ROOT, Block, blocks

README = blocks("README.md")
WAIT_S = 240
READY = "ottla ready bootstrap="
UP = "ottla up "
DATA = ".local/state/ottla"


class Reader(NamedTuple):
    """Somebody with a clone, whose terminals have this environment."""

    clone: Path
    environment: dict[str, str]
    port: int

    def as_typed(self, text: str) -> str:
        return text.replace("127.0.0.1:9092", f"127.0.0.1:{self.port}").replace(UP, f"{UP}--port {self.port} ")

    def run(self, command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=self.clone, env=self.environment, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def save(self, block: Block) -> Path:
        assert block.file_name is not None, f"a script says how to save it, in its first line: {block.text[:80]}"
        path = self.clone / block.file_name
        path.write_text(self.as_typed(block.text))
        return path


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    home = tmp_path_factory.mktemp("home")
    clone = home / "clone"
    clone.mkdir()
    (clone / ".venv").symlink_to(Path(sys.executable).parents[1])
    programs = home / "programs"
    programs.mkdir()
    make = programs / "make"
    make.write_text(f'#!/bin/sh\nexec {shutil.which("make")} --directory {ROOT} --dry-run "$@"\n')
    make.chmod(0o755)
    outside = [each for each in os.environ["PATH"].split(":") if Path(each) != Path(sys.executable).parent]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "OTTLA_", "VIRTUAL_"))}
    environment = {**kept, "HOME": str(home), "PATH": ":".join([str(programs), *outside])}
    port = reserve_ports(3, in_a_row=True)[0]
    return Reader(clone, {**environment, "OTTLA_BOOTSTRAP": f"127.0.0.1:{port}"}, port)


@pytest.fixture(scope="module")
def first_terminal(reader: Reader) -> Iterator[Reader]:
    """The first block ends with `ottla up`, which serves until the others are done."""
    first = next(block for block in README if block.language == "sh")
    assert UP in first.text.splitlines()[-1]
    log = reader.clone / "up.log"
    command = ["bash", "-ec", reader.as_typed(first.text).replace(UP, f"exec {UP}")]
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, cwd=reader.clone, env=reader.environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as up,
    ):
        assert up.stdout is not None
        for line in up.stdout:
            if line.startswith(READY):
                break
        else:
            pytest.fail(log.read_text())
        try:
            yield reader
        finally:
            up.terminate()
            up.wait(WAIT_S)


@pytest.fixture(scope="module")
def second_terminal(first_terminal: Reader) -> str:
    """What the second block prints."""
    _, second = (block for block in README if block.language == "sh")
    return first_terminal.run(["bash", "-ec", first_terminal.as_typed(second.text)])


SCRIPTS = [
    (block, README[at + 1].text if at + 1 < len(README) and README[at + 1].language == "text" else None)
    for at, block in enumerate(README)
    if block.language == "python"
]


def test_the_commands(second_terminal: str) -> None:
    lines = second_terminal.splitlines()
    assert "created orders with 3 partitions" in lines
    assert [line for line in lines if line.strip() == "100000"], "all of them, through a group"
    assert "billing" in second_terminal


@pytest.mark.parametrize(("script", "shown"), SCRIPTS, ids=[str(script.file_name) for script, _ in SCRIPTS])
def test_a_script_prints_what_is_shown(
    first_terminal: Reader, second_terminal: str, script: Block, shown: str | None
) -> None:
    if "ottla.spark" in script.text:
        pytest.importorskip("pyspark")
        try:
            find_java()
        except JavaMissingError as missing:
            pytest.skip(str(missing))
    path = first_terminal.save(script)
    if path.name.startswith("test_"):
        first_terminal.run(["bash", "-ec", f". .venv/bin/activate; pytest {path.name}"])
        return
    printed = first_terminal.run(["bash", "-ec", f". .venv/bin/activate; python {path.name}"])
    assert shown is not None, "the output is shown below the script"
    assert printed.splitlines() == shown.splitlines()


def test_the_data_is_where_it_is_said_to_be(first_terminal: Reader, second_terminal: str) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"rm -rf ~/{DATA}`" in text
    assert (Path(first_terminal.environment["HOME"]) / DATA / "broker-1").is_dir()

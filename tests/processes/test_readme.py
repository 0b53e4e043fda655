"""Runs the README and the Get started pages as they stand: commands in order, scripts, and the output shown.

Two things differ from a reader's terminal. Free ports replace 9092 and the next two. `make` is a stub that only looks
for the target, because `test_demo` runs the demo and this is one of the tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from ottla.spark.jvm.java import JavaMissingError, find_java
from ottla.testing.ports import reserve_ports
from tests.support.pages import ROOT, Block, blocks

PAGES = [
    "README.md",
    "docs/get-started/install.md",
    "docs/get-started/first-topic.md",
    "docs/get-started/first-test.md",
    "docs/get-started/first-pipeline.md",
]
WAIT_S = 240
READY = "ottla ready bootstrap="
UP = re.compile(r"\bottla up\b")
DATA = ".local/state/ottla"
ACTIVATED = ". .venv/bin/activate; "


class Reader(NamedTuple):
    """A person with a clone of the repository and terminals with this environment."""

    clone: Path
    environment: dict[str, str]
    port: int

    def as_typed(self, text: str) -> str:
        return UP.sub(f"ottla up --port {self.port}", text.replace("127.0.0.1:9092", f"127.0.0.1:{self.port}"))

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-ec", self.as_typed(command)],
            cwd=self.clone,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def save(self, block: Block) -> str:
        assert block.file_name is not None, f"a script says how to save it, in its first line: {block.text[:80]}"
        (self.clone / block.file_name).write_text(self.as_typed(block.text))
        return block.file_name


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / ".venv").symlink_to(Path(sys.executable).parents[1])
    programs = tmp_path / "programs"
    programs.mkdir()
    make = programs / "make"
    make.write_text(f'#!/bin/sh\ngrep --quiet "^$1:" {ROOT / "Makefile"}\n')
    make.chmod(0o755)
    outside = [each for each in os.environ["PATH"].split(":") if Path(each) != Path(sys.executable).parent]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "OTTLA_", "VIRTUAL_"))}
    environment = {**kept, "HOME": str(tmp_path), "PATH": ":".join([str(programs), *outside])}
    port = reserve_ports(3, in_a_row=True)[0]
    return Reader(clone, {**environment, "OTTLA_BOOTSTRAP": f"127.0.0.1:{port}"}, port)


@contextmanager
def first_terminal(reader: Reader, steps: list[Block]) -> Iterator[None]:
    """Runs the block that ends with `ottla up`, if the page has one, until the other blocks are done."""
    [*starts] = [step for step in steps if is_start(step)]
    if not starts:
        yield
        return
    log = reader.clone / "up.log"
    command = ["bash", "-ec", reader.as_typed(UP.sub("exec ottla up", starts[0].text))]
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, cwd=reader.clone, env=reader.environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as up,
    ):
        assert up.stdout is not None
        try:
            if not any(line.startswith(READY) for line in up.stdout):
                pytest.fail(log.read_text())
            yield
        finally:
            up.terminate()
            up.wait(WAIT_S)


def is_start(block: Block) -> bool:
    return block.language == "sh" and UP.search(block.text.splitlines()[-1]) is not None


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_works_as_typed(reader: Reader, page: str) -> None:
    steps = blocks(page)
    assert {step.language for step in steps} <= {"sh", "python", "text"}, "a test runs every block"
    if any("ottla.spark" in step.text for step in steps):
        skip_without_spark()
    with first_terminal(reader, steps):
        for at, step in enumerate(steps):
            shown = steps[at + 1].text if at + 1 < len(steps) and steps[at + 1].language == "text" else None
            if step.language == "python":
                run_script(reader, step, shown)
            elif step.language == "sh" and not is_start(step):
                printed = reader.run(step.text).splitlines()
                assert [line for line in (shown or "").splitlines() if line not in map(str.strip, printed)] == []


def run_script(reader: Reader, script: Block, shown: str | None) -> None:
    name = reader.save(script)
    if name.startswith("test_"):
        reader.run(f"{ACTIVATED}pytest {name}")
        return
    assert shown is not None, "the output is shown below the script"
    assert reader.run(f"{ACTIVATED}python {name}").splitlines() == shown.splitlines()


def skip_without_spark() -> None:
    pytest.importorskip("pyspark")
    try:
        find_java()
    except JavaMissingError as missing:
        pytest.skip(str(missing))


def test_the_data_is_where_the_page_says(reader: Reader) -> None:
    page = "docs/get-started/first-topic.md"
    assert f"rm -rf ~/{DATA}`" in (ROOT / page).read_text(encoding="utf-8")
    with first_terminal(reader, blocks(page)):
        assert (Path(reader.environment["HOME"]) / DATA / "broker-1").is_dir()

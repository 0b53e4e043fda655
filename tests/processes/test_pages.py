"""Runs the scripts of docs/guides/testing.md and docs/reference/client.md; the first page names every fixture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ottla.testing import Cluster
from tests.support.pages import ROOT, Block, blocks

TESTING = blocks("docs/guides/testing.md")
CLIENT = [block for block in blocks("docs/reference/client.md") if "Sync" in block.text]
WAIT_S = 120


def run(command: list[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    [block] = [block for block in TESTING if block.file_name == "test_fixtures.py"]
    (tmp_path / "test_fixtures.py").write_text(block.text)
    assert "4 passed" in run([sys.executable, "-m", "pytest", "test_fixtures.py"], tmp_path)


def test_the_script_of_the_page_prints_what_is_shown(tmp_path: Path) -> None:
    at = next(at for at, block in enumerate(TESTING) if block.file_name == "one_script.py")
    (tmp_path / "one_script.py").write_text(TESTING[at].text)
    assert run([sys.executable, "one_script.py"], tmp_path) == TESTING[at + 1].text


@pytest.mark.parametrize("block", CLIENT, ids=lambda block: block.text.splitlines()[0][:30])
def test_a_blocking_example_of_the_client_runs(ottla: Cluster, tmp_path: Path, block: Block) -> None:
    path = tmp_path / "example.py"
    path.write_text(block.text.replace("127.0.0.1:9092", ottla.bootstrap_servers))
    assert run([sys.executable, str(path)], tmp_path)


def test_the_page_names_every_fixture_method_and_property() -> None:
    text = (ROOT / "docs" / "guides" / "testing.md").read_text(encoding="utf-8")
    names = [name for name in dir(Cluster) if not name.startswith("_")]
    fixtures = ["ottla", "ottla_cluster", "ottla_cluster_factory"]
    assert [name for name in [*names, *fixtures] if f"`{name}`" not in text and f"`{name}(" not in text] == []

"""The modules that a process imports when it starts, and those it must not import."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("hypothesis", "pydantic", "pyarrow", "numpy", "rich")


def test_a_broker_and_a_client_start_without_heavy_modules() -> None:
    """kio would import hypothesis where it is installed, as it is here, and newer versions of typer import pydantic:
    half a second and 20 MB for every process."""
    modules = "ottla.broker.app, ottla.cli.up.commands, ottla.client.consumer.consumer"
    script = f"import sys, {modules}; print(*set({HEAVY}) & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert found.stdout.split() == []
    assert "hypothesis" in sys.modules, "it is installed"


def test_a_command_imports_no_other() -> None:
    script = "from ottla.cli import main; main(['version']); main(['up', '--help']); import sys; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "ottla.cli.up.commands" in found
    assert "ottla.cli.pipeline.commands" not in found

"""What a process imports when it starts, and what it does not."""

from __future__ import annotations

import subprocess
import sys


def test_a_broker_and_a_client_start_without_hypothesis() -> None:
    """kio would import it where it is installed, as it is here: a fifth of a second for each process of each test."""
    script = "import sys, ottla.app, ottla.cli.up, ottla.client.consumer; sys.exit(not {'hypothesis', 'pydantic', 'pyarrow', 'rich'}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
    assert "hypothesis" in sys.modules, "it is installed"

"""The programs of examples/postgres run without prior setup and prove what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.postgres_server import PostgresServer

EXAMPLES = Path(__file__).parents[2] / "examples" / "postgres"
WITH_SPARK = "spark_table_and_back"
EXPECTED = {
    "protect": "rows restored; of the commits that the client saw, 0 are missing",
    "undo_a_bad_delete": "=> 1000 rows put back; all as before, and what came after it: True",
}


def test_every_example_is_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*EXPECTED, WITH_SPARK, "scene"}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_proves_what_it_says(name: str) -> None:
    PostgresServer().close()  # skips the test if there is no PostgreSQL
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(EXPECTED[name])

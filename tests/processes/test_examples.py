"""Every program in `examples/` runs without prior setup and prints what its page says."""

from __future__ import annotations

import re
import runpy
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.client import ConsumerRecord

EXAMPLES = Path(__file__).parents[2] / "examples"
WAIT_S = 120

EXPECTED = {
    "produce_consume": """\
        acknowledged at example-orders-0, offset 0
        10,001 records acknowledged
        offset 0: b'customer-1' b'the first order'
        offset 1: b'customer-0' b'order 0'
        offset 2: b'customer-1' b'order 1'
        offset 3: b'customer-2' b'order 2'
        offset 4: b'customer-3' b'order 3'
        a program that stores 5 goes on there""",
    "arrow_table": r"""\
        1,000,000 rows acknowledged in <s> s
          partition 0: <n> rows from offset 0
          partition 1: <n> rows from offset 0
          partition 2: <n> rows from offset 0
          partition 3: <n> rows from offset 0
        1,000,000 rows read in <s> s
        the readings add up to 249,999,750,000.0""",
    "transaction": """\
        aborted: anna cannot pay 1000
        committed: anna pays 10 to ben
        committed: ben pays 7 to carl""",
    "at_most_once": """\
        ships order 1
        ships order 2
        the worker dies after it has committed order 3
        ships order 4
        ships order 5""",
    "at_least_once": """\
        ships order 1
        ships order 2
        ships order 3
        the worker dies before it has committed order 3
        ships order 3
        ships order 4
        ships order 5""",
    "exactly_once": """\
        writes a bill for order 1
        writes a bill for order 2
        writes a bill for order 3
        the worker dies before it has committed
        writes a bill for order 3
        writes a bill for order 4
        writes a bill for order 5
        a reader sees: bill for order 1
        a reader sees: bill for order 2
        a reader sees: bill for order 3
        a reader sees: bill for order 4
        a reader sees: bill for order 5""",
    "exactly_once_database": """\
        books 10 for anna
        books 5 for ben
        books 20 for anna
        the worker dies before the database has committed
        books 20 for anna
        books 7 for ben
        books 1 for anna
        anna has 31
        ben has 12""",
}


def test_every_example_is_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_prints_what_it_should(name: str) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = re.sub(r"[\d.]+ s$", "<s> s", done.stdout, flags=re.MULTILINE)
    found = re.sub(r": [\d,]+ rows", ": <n> rows", found)
    assert [line.strip() for line in found.splitlines()] == lines(EXPECTED[name])


def test_the_database_books_a_record_once_whoever_reads_it(tmp_path: Path) -> None:
    """A worker that was away too long resumes after another worker has booked its records."""
    example = runpy.run_path(str(EXAMPLES / "exactly_once_database.py"))
    record = ConsumerRecord("payments", 0, 7, 0, b"anna", b"10", ())
    for worker in ("the new one", "the one that was away"):
        database = sqlite3.connect(tmp_path / "accounts.db")
        database.executescript(example["TABLES"])
        example["stored_offset"](database, record.at)
        assert example["book"](database, record, False) == (worker == "the new one")
        assert database.execute("SELECT amount FROM balances").fetchall() == [(10,)]
        assert example["stored_offset"](database, record.at) == 8
        database.close()


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.removeprefix("\\\n").splitlines()]

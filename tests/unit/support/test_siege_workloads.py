"""Histories of the workloads of a siege are parsed and checked: planted anomalies are found, valid ones pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.siege.workloads import transactions, wal
from tests.processes.siege.workloads.transactions import END
from tests.support.anomalies.history import Outcome

TRANSACTOR = """
    10 began ottla-1:1
    11 sends ottla-1:1 tx-0 ottla-1:1.0
    12 acked ottla-1:1 ottla-1:1.0 0
    13 sends ottla-1:1 tx-1 ottla-1:1.1
    14 acked ottla-1:1 ottla-1:1.1 0
    15 commits ottla-1:1
    16 committed ottla-1:1
    20 began ottla-1:2
    21 sends ottla-1:2 tx-0 ottla-1:2.0
    22 acked ottla-1:2 ottla-1:2.0 2
    23 aborted ottla-1:2
    30 began ottla-1:3
    31 read ottla-1:3 tx-0 0 2 30 1 0=ottla-1:1.0
    32 sends ottla-1:3 tx-0 ottla-1:3.1
    33 acked ottla-1:3 ottla-1:3.1 4
    34 commits ottla-1:3
"""
WORKER = """
    18 began 1 2
    19 commits 1
    20 committed 1
    40 began 2 1
    41 commits 2
"""
COMMITTED = """
    tx-0 0 ottla-1:1.0
    tx-0 4 ottla-1:3.1
    tx-1 0 ottla-1:1.1
    tx-out-0 0 ottla-1:1.0|worker-1.1.C
    tx-out-1 0 ottla-1:1.1|worker-1.1.C
    tx-out-0 2 ottla-1:3.1|worker-1.2.C
"""


def write(path: Path, text: str) -> None:
    path.write_text("".join("\t".join(line.split()) + "\n" for line in text.splitlines() if line.strip()))


def names(folder: Path, *, transactor: str = TRANSACTOR, worker: str = WORKER, committed: str = COMMITTED) -> set[str]:
    write(folder / "ottla-1.transactor", transactor)
    write(folder / "worker-1.transactions", worker)
    write(folder / END, committed)
    return {name for name, _ in transactions.judge(folder).anomalies}


def test_valid_transactions(tmp_path: Path) -> None:
    assert names(tmp_path) == set()
    counts = transactions.judge(tmp_path).counts
    assert counts["transactions, committed"] == 1
    assert counts["transactions, aborted"] == 1
    assert counts["transactions, unknown"] == 1
    assert counts["transactions, appends"] == 4
    assert counts["exactly-once transactions, committed"] == 1


def test_a_commit_without_a_reply_has_an_unknown_outcome(tmp_path: Path) -> None:
    write(tmp_path / "ottla-1.transactor", TRANSACTOR)
    found = {each.name: each for each in transactions.read_transactors(tmp_path)}
    assert found["ottla-1:3"].outcome is Outcome.UNKNOWN
    assert found["ottla-1:3"].commit_began == 34


def test_a_line_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "ottla-1.transactor").write_text("10\tbegan\tottla-1:1\n11\tcommits\tottla")
    (found,) = transactions.read_transactors(tmp_path)
    assert found.outcome is Outcome.ABORTED


@pytest.mark.parametrize(
    ("lines", "anomaly"),
    [
        ("tx-1 0 ottla-1:1.1\n", "lost append"),
        ("tx-out-1 0 ottla-1:1.1|worker-1.1.C\n", "unprocessed"),
    ],
)
def test_missing_records(tmp_path: Path, lines: str, anomaly: str) -> None:
    assert anomaly in names(tmp_path, committed=COMMITTED.replace(lines.strip(), ""))


def test_an_aborted_read(tmp_path: Path) -> None:
    assert "G1a, aborted read" in names(tmp_path, committed=COMMITTED + "tx-0 2 ottla-1:2.0")


def test_a_record_that_is_processed_twice(tmp_path: Path) -> None:
    worker = WORKER + "50 began 3 1\n51 commits 3\n52 committed 3\n"
    found = names(tmp_path, worker=worker, committed=COMMITTED + "tx-out-0 4 ottla-1:3.1|worker-1.3.C")
    assert {"processed twice", "exactly once: a record is in the output more than once"} <= found


def test_a_torn_output(tmp_path: Path) -> None:
    worker = WORKER.replace("40 began 2 1", "40 began 2 2")
    assert names(tmp_path, worker=worker) == {"exactly once: a part of a transaction is read"}


def test_nobody_read_the_end(tmp_path: Path) -> None:
    names(tmp_path)
    (tmp_path / END).unlink()
    assert [name for name, _ in transactions.judge(tmp_path).anomalies] == ["broken"]


WAL = """
    1000000 asks 1 wal-competed tail follow-1-competes-0 -1 0
    1000100 gets 1 done 0 0
    1000200 asks 2 wal-competed append follow-1-competes-0 0 0
    1000300 gets 2 done 0 0
    1000400 asks 3 wal-competed append follow-1-competes-1 -1 0
"""
ENTRIES = """
    2000000 entry wal-competed 0 follow-1.2
    2000001 whole wal-competed
"""


def test_valid_appends(tmp_path: Path) -> None:
    write(tmp_path / "follow-1.wal", WAL)
    write(tmp_path / "final-2.wal", ENTRIES)
    judged = wal.judge(tmp_path)
    assert judged.violations == []
    assert judged.counts == {"tail done": 1, "append done": 1, "append unknown": 1}


def test_a_lost_append(tmp_path: Path) -> None:
    write(tmp_path / "follow-1.wal", WAL)
    write(tmp_path / "final-2.wal", "2000001 whole wal-competed")
    (sentence,) = wal.judge(tmp_path).violations
    assert "lost" in sentence


def test_a_log_that_was_not_read_to_its_end(tmp_path: Path) -> None:
    write(tmp_path / "follow-1.wal", WAL)
    assert wal.judge(tmp_path).violations == ["wal-competed was not read to its end"]

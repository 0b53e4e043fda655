"""pgbench with a record of the transactions that each client saw committed, and the resulting expectations.

Each transaction is pgbench's own (TPC-B like) plus a row in `ledger`: the round, the client, and the client's count.
pgbench logs a transaction after its commit has returned. For a client with k logged transactions the rows 1..k must
exist; row k+1 may exist if the server died before it could reply.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

CLIENTS = 4
SCRIPT = r"""
\set aid random(1, 100000)
\set tid random(1, 10)
\set delta random(-5000, 5000)
\set n :n + 1
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = 1;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, 1, :aid, :delta, CURRENT_TIMESTAMP);
INSERT INTO ledger (round, client, n, delta) VALUES (:round, :client_id, :n, :delta);
END;
"""
TABLES = "CREATE TABLE ledger (round int, client int, n int, delta int, PRIMARY KEY (round, client, n))"


class Bench:
    """One run of pgbench in its own process."""

    def __init__(self, binaries: Path, url: str, directory: Path, number: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        script = directory / "script.sql"
        script.write_text(SCRIPT)
        self.number = number
        self._directory = directory
        command = [str(binaries / "pgbench"), "-n", "-f", str(script), "-c", str(CLIENTS), "-j", "1", "-T", "600"]
        command += ["-D", "n=0", "-D", f"round={number}", "-l", "--log-prefix=transactions", url]
        with (directory / "output").open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, cwd=directory)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def finish(self, timeout_s: float = 30) -> Counter[tuple[int, int]]:
        """Returns how many transactions each (round, client) saw committed, after the server's death ended the run."""
        self._process.wait(timeout_s)
        seen: Counter[tuple[int, int]] = Counter({(self.number, client): 0 for client in range(CLIENTS)})
        for path in self._directory.glob("transactions.*"):
            for line in path.read_text().splitlines():
                seen[self.number, int(line.split()[0])] += 1
        return seen

    def kill(self) -> None:
        if self.running:
            self._process.kill()
        self._process.wait()


@dataclass(slots=True)
class Expected:
    """The expected content of a restored server: for rounds compared before, exactly the content found then."""

    exact: dict[tuple[int, int], int] = field(default_factory=dict)
    seen: Counter[tuple[int, int]] = field(default_factory=Counter)

    def committed(self) -> int:
        return sum(self.seen.values()) + sum(self.exact.values())


def initialize(binaries: Path, url: str) -> None:
    subprocess.run([str(binaries / "pgbench"), "-i", "-q", "-s", "1", url], check=True, capture_output=True)
    with psycopg.connect(url) as connection:
        connection.execute(TABLES)
        connection.execute("CREATE EXTENSION amcheck")


def compare(url: str, expected: Expected) -> list[str]:
    """Returns descriptions of the differences. The content found becomes the expectation of later rounds."""
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT round, client, count(*), min(n), max(n) FROM ledger GROUP BY 1, 2").fetchall()
        sums = connection.execute(
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers), "
            "(SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history), "
            "(SELECT coalesce(sum(delta), 0) FROM ledger)"
        ).fetchone()
    findings = [] if sums is None or len(set(sums)) == 1 else [f"torn: sums of the tables are {sums}"]
    found: dict[tuple[int, int], int] = {}
    for number, client, count, low, high in rows:
        found[number, client] = count
        if (low, high) != (1, count):
            findings.append(f"round {number}, client {client}: {count} transactions between {low} and {high}")
    findings += _differences(expected, found)
    expected.exact, expected.seen = found, Counter()
    return findings


def _differences(expected: Expected, found: dict[tuple[int, int], Any]) -> list[str]:
    findings = []
    for (number, client), count in expected.exact.items():
        if found.get((number, client), 0) != count:
            findings.append(f"round {number}, client {client}: {found.get((number, client), 0)} now, {count} before")
    for (number, client), count in expected.seen.items():
        there = found.get((number, client), 0)
        if there < count:
            findings.append(f"LOST: round {number}, client {client} saw {count} committed, and {there} are there")
        elif there > count + 1:
            findings.append(f"round {number}, client {client} saw {count} committed, and {there} are there")
    return findings

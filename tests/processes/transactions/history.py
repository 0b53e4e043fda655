"""The history that workers record: lines of tab-separated fields, one file per worker, on one monotonic clock.

time  began      number records   a transaction, before any of it is sent
time  commits    number           its offsets are sent; its commit follows
time  committed  number           the commit is acknowledged
time  aborted    number           the abort is acknowledged
time  failed     number error     the next lines tell the result
"""

from __future__ import annotations

from pathlib import Path

from tests.processes.transactions.checker import Outcome, Transaction

SUFFIX = ".transactions"
_ENDS = {"committed": Outcome.COMMITTED, "aborted": Outcome.ABORTED}


def read_transactions(directory: Path, stage: str) -> dict[str, Transaction]:
    """Returns the transactions of workers with this name prefix, by worker and number."""
    found: dict[str, Transaction] = {}
    for path in sorted(directory.glob(f"{stage}*{SUFFIX}")):
        for line in path.read_text(encoding="ascii").splitlines():
            _, kind, number, *rest = line.split("\t")
            name = f"{path.stem}.{number}"
            if kind == "began":
                found[name] = Transaction(int(rest[0]), Outcome.UNKNOWN)
            elif kind in _ENDS:
                found[name] = found[name]._replace(outcome=_ENDS[kind])
    return found

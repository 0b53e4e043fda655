"""The history of simulated transactions in the form that `tests.support.anomalies` checks, which knows no broker.

It adds checks that compare readers with one another: each one that has passed a committed record has got it, also one
that started late or read only a part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from tests.simulation.cluster_clients import Place
from tests.simulation.transactions_history import Outcome as SimulatedOutcome
from tests.simulation.transactions_history import TransactionHistory, Truth
from tests.simulation.violations import Violation
from tests.support.anomalies.checker import check
from tests.support.anomalies.history import NEVER, Append, History, Outcome, Read, Transaction

OUTCOMES = {
    SimulatedOutcome.ABORTED: Outcome.ABORTED,
    SimulatedOutcome.COMMITTED: Outcome.COMMITTED,
    SimulatedOutcome.UNKNOWN: Outcome.UNKNOWN,
}


def check_anomalies(history: TransactionHistory, truth: Truth, committed_only: Mapping[str, bool]) -> None:
    """Raises a Violation for the first anomaly. `committed_only` has the isolation of each reader; a reader that is not
    in it has read_committed."""
    logs: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for (topic, index, offset), value in sorted(truth.committed.items()):
        logs[f"{topic}-{index}"].append((offset, value.decode()))
    readers = (name for name in history.seen if committed_only.get(name, True))
    transactions = [*_writers(history, truth), *(_reader(name, history.seen[name]) for name in readers)]
    for each in transactions:
        for operation in each.operations:
            logs.setdefault(operation.key, [])
    findings = check(History(transactions, logs))
    if findings:
        raise Violation("anomaly", str(findings[0]))


def _writers(history: TransactionHistory, truth: Truth) -> Iterator[Transaction]:
    places = {value: place for place, value in (*truth.committed.items(), *truth.aborted.items())}
    for one in history.transactions.values():
        found: list[Append | Read] = []
        for value, acknowledged in one.values.items():
            place = acknowledged or places.get(value)
            if place is not None:  # a record that no log has, in a partition that is not known
                offset = None if acknowledged is None else acknowledged[2]
                found.append(Append(f"{place[0]}-{place[1]}", value.decode(), 0, NEVER, offset))
        ended = one.settled_s if one.outcome is SimulatedOutcome.COMMITTED else NEVER
        yield Transaction(f"{one.transactional_id}/{one.number}", found, OUTCOMES[one.outcome], 0, ended)


def _reader(name: str, seen: Mapping[Place, bytes]) -> Transaction:
    records: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for (topic, index, offset), value in sorted(seen.items()):
        records[f"{topic}-{index}"].append((offset, value.decode()))
    reads: list[Append | Read] = [Read(key, 0, each[-1][0] + 1, tuple(each), 0, NEVER) for key, each in records.items()]
    return Transaction(name, reads, Outcome.COMMITTED, 0)

"""The checker of tests/processes/transactions finds each anomaly in a history that has it, and none in a good one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.processes.transactions.checker import Anomaly, ChainHistory, Outcome, Seen, Transaction, check
from tests.processes.transactions.history import SUFFIX, read_transactions

SOURCE = [Seen(0, 0, "0:0"), Seen(0, 1, "0:1"), Seen(0, 2, "3:0"), Seen(1, 0, "1:0")]
OUTPUT = [
    Seen(0, 0, "0:0|first-1.1.C"),
    Seen(0, 1, "0:1|first-1.1.C"),
    Seen(0, 5, "3:0|first-1.3.C"),
    Seen(1, 0, "1:0|first-1.1.C"),
]
TRANSACTIONS = {
    "first-1.1": Transaction(3, Outcome.COMMITTED),
    "first-1.2": Transaction(1, Outcome.ABORTED),
    "first-1.3": Transaction(1, Outcome.UNKNOWN),
}
GOOD = ChainHistory(SOURCE, {"b": OUTPUT}, {"b": [OUTPUT[3], *OUTPUT[:3]]}, {"b": TRANSACTIONS})


def found(history: ChainHistory) -> set[Anomaly]:
    return set(check(history).sentences)


def with_output(*output: Seen) -> ChainHistory:
    """Live readers see the same records as final readers."""
    return replace(GOOD, views={"b": output}, live={"b": output})


def test_a_good_history() -> None:
    assert check(GOOD).ok
    assert str(check(GOOD)) == "nothing is wrong"


@pytest.mark.parametrize(
    ("history", "anomalies"),
    [
        (with_output(*OUTPUT[:2], OUTPUT[3]), {Anomaly.LOST}),
        (with_output(*OUTPUT, Seen(0, 7, "3:0|first-2.1.C")), {Anomaly.DOUBLED, Anomaly.INVENTED}),
        (with_output(*OUTPUT, Seen(0, 7, "3:1|first-1.3.C")), {Anomaly.INVENTED, Anomaly.REORDERED, Anomaly.TORN}),
        (with_output(*OUTPUT[2:], OUTPUT[0]._replace(offset=1), OUTPUT[1]._replace(offset=0)), {Anomaly.REORDERED}),
        (with_output(*OUTPUT[:2], OUTPUT[2]._replace(value="3:0|first-1.2.C"), OUTPUT[3]), {Anomaly.ABORTED_READ}),
        (with_output(*OUTPUT[:3]), {Anomaly.LOST, Anomaly.TORN}),
        (with_output(OUTPUT[2]), {Anomaly.LOST, Anomaly.UNDONE}),
        (replace(GOOD, live={"b": OUTPUT[1:]}), {Anomaly.SKIPPED}),
        (replace(GOOD, live={"b": [*OUTPUT, Seen(0, 3, "3:0|first-1.2.A")]}), {Anomaly.ABORTED_READ}),
        (replace(GOOD, live={"b": [*OUTPUT, Seen(0, 7, "3:1|first-1.4.C")]}), {Anomaly.CHANGED}),
        (replace(GOOD, live={"b": [*OUTPUT, OUTPUT[2]]}), {Anomaly.CHANGED}),
        (replace(GOOD, broken=["transactions never end"]), {Anomaly.BROKEN}),
    ],
    ids=lambda value: "+".join(sorted(each.name for each in value)) if isinstance(value, set) else "history",
)
def test_what_is_wrong_is_found(history: ChainHistory, anomalies: set[Anomaly]) -> None:
    assert found(history) == anomalies


def test_a_mark_of_an_abort_on_purpose_is_found_whatever_the_worker_says() -> None:
    marked = with_output(*OUTPUT[:2], OUTPUT[2]._replace(value="3:0|first-1.3.A"), OUTPUT[3])
    assert found(marked) == {Anomaly.ABORTED_READ}


def test_what_workers_record_is_read_back(tmp_path: Path) -> None:
    lines = ["1\tbegan\t1\t3", "2\tcommits\t1", "3\tcommitted\t1", "4\tbegan\t2\t1", "5\tfailed\t2\tX", "6\taborted\t2"]
    (tmp_path / f"first-1{SUFFIX}").write_text("\n".join([*lines, "7\tbegan\t3\t1", "8\tcommits\t3\n"]))
    (tmp_path / f"second-1{SUFFIX}").write_text("1\tbegan\t1\t3\n")
    assert read_transactions(tmp_path, "first") == TRANSACTIONS

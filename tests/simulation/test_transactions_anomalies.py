"""The check for anomalies finds those that are planted in the history of simulated transactions."""

from __future__ import annotations

import pytest

from tests.simulation.transactions_anomalies import check_anomalies
from tests.simulation.transactions_history import Outcome, TransactionHistory, Truth
from tests.simulation.violations import Violation

ISOLATION = {"early": True, "uncommitted": False}


def history() -> tuple[TransactionHistory, Truth]:
    """Two committed records and an aborted one, which a read_uncommitted reader saw."""
    found, truth = TransactionHistory(), Truth()
    for number, outcome in enumerate((Outcome.COMMITTED, Outcome.ABORTED, Outcome.UNKNOWN)):
        transaction = found.begin("worker")
        place = "orders", 0, 2 * number
        value = found.new_value(transaction)
        transaction.values[value], transaction.outcome = place, outcome
        (truth.aborted if outcome is Outcome.ABORTED else truth.committed)[place] = value
    found.seen["early"] = dict(truth.committed)
    found.seen["uncommitted"] = {**truth.committed, **truth.aborted}
    return found, truth


def test_a_valid_history() -> None:
    check_anomalies(*history(), ISOLATION)


def test_a_late_reader_that_skipped_a_record() -> None:
    found, truth = history()
    last = max(truth.committed)
    found.seen["late"] = {last: truth.committed[last]}
    with pytest.raises(Violation, match="skipped: late read orders-0 from 0 to 5"):
        check_anomalies(found, truth, ISOLATION)


def test_an_aborted_record() -> None:
    found, truth = history()
    found.seen["early"].update(truth.aborted)
    with pytest.raises(Violation, match="G1a, aborted read"):
        check_anomalies(found, truth, ISOLATION)


def test_a_record_elsewhere_than_acknowledged() -> None:
    found, truth = history()
    first = min(truth.committed)
    truth.committed["orders", 0, 1] = truth.committed.pop(first)
    with pytest.raises(Violation, match="duplicate append"):
        check_anomalies(found, truth, ISOLATION)

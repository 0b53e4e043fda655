"""Seeds of `TransactionsRun`: no fault of a cluster breaks the atomicity of a transaction.

To repeat one seed: `python -m tests.simulation.campaign --transactions --replay SEED`.
"""

from __future__ import annotations

import os
from time import perf_counter

import pytest

from tests.simulation.cluster_clients import Place
from tests.simulation.test_networked_broker import Rate, rate
from tests.simulation.transactions_history import Outcome, Transaction, TransactionHistory, Truth
from tests.simulation.transactions_run import TransactionsRun
from tests.simulation.violations import Violation

__all__ = ["rate"]

SEEDS = max(int(os.environ.get("OTTLA_SIM_SEEDS", "300")) // 60, 4)
PINNED: tuple[int, ...] = (21, 82)
"""Each found a bug: a leader continued with a damaged log because its start had found damage in another one."""


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed-{seed}") for seed in sorted({*range(SEEDS), *PINNED})])
def test_a_transaction_is_there_as_a_whole_or_not_at_all(seed: int, rate: Rate) -> None:
    run = TransactionsRun(seed)
    begin_s = perf_counter()
    run.execute()
    rate.real_s += perf_counter() - begin_s
    rate.virtual_s += run.world.now_s
    rate.seeds += 1
    rate.records += run.acknowledged
    run.check()


def test_the_same_seed_is_the_same_run() -> None:
    digests = set()
    for _ in range(2):
        run = TransactionsRun(1)
        run.world.trace.start()
        run.execute()
        digests.add(run.world.trace.digest)
    assert len(digests) == 1


# -- checks of clients' histories ------------------------------------------------------------------------------------

FIRST, SECOND = ("orders", 0, 0), ("payments", 1, 7)


def two_records(outcome: Outcome, *, has_offset: bool = False) -> tuple[TransactionHistory, Transaction]:
    history = TransactionHistory()
    transaction = history.begin("t")
    for place in (FIRST, SECOND):
        transaction.values[history.new_value(transaction)] = place
    transaction.has_offset = has_offset
    transaction.outcome, transaction.settled_s = outcome, 1.0
    return history, transaction


def truth_of(transaction: Transaction, *places: Place, offset: bool | None = None) -> Truth:
    """A truth in which only the records at these places are committed."""
    truth = Truth()
    for value, place in transaction.values.items():
        assert place is not None
        (truth.committed if place in places else truth.aborted)[place] = value
    if offset is not None:
        truth.offsets["t", 1] = offset
    return truth


@pytest.mark.parametrize(
    ("outcome", "places"),
    [
        (Outcome.COMMITTED, (FIRST, SECOND)),
        (Outcome.UNKNOWN, (FIRST, SECOND)),
        (Outcome.UNKNOWN, ()),
        (Outcome.ABORTED, ()),
    ],
)
def test_what_may_be_there(outcome: Outcome, places: tuple[Place, ...]) -> None:
    history, transaction = two_records(outcome)
    history.check(truth_of(transaction, *places))


@pytest.mark.parametrize(
    ("outcome", "places", "checker"),
    [
        (Outcome.COMMITTED, (FIRST,), "committed"),
        (Outcome.COMMITTED, (), "committed"),
        (Outcome.UNKNOWN, (SECOND,), "torn"),
        (Outcome.ABORTED, (SECOND,), "aborted"),
        (Outcome.ABORTED, (FIRST, SECOND), "aborted"),
    ],
)
def test_what_must_not_be_there(outcome: Outcome, places: tuple[Place, ...], checker: str) -> None:
    history, transaction = two_records(outcome)
    with pytest.raises(Violation, match=rf"^{checker}:"):
        history.check(truth_of(transaction, *places))


@pytest.mark.parametrize(
    ("outcome", "places", "offset", "checker"),
    [
        (Outcome.COMMITTED, (FIRST, SECOND), False, "committed"),
        (Outcome.UNKNOWN, (FIRST, SECOND), None, "torn"),
        (Outcome.UNKNOWN, (), True, "torn"),
        (Outcome.ABORTED, (), True, "aborted"),
    ],
)
def test_offsets_are_part_of_it(outcome: Outcome, places: tuple[Place, ...], offset: bool | None, checker: str) -> None:
    history, transaction = two_records(outcome, has_offset=True)
    with pytest.raises(Violation, match=rf"^{checker}:"):
        history.check(truth_of(transaction, *places, offset=offset))


def test_a_record_is_there_once() -> None:
    history, transaction = two_records(Outcome.COMMITTED)
    truth = truth_of(transaction, FIRST, SECOND)
    truth.aborted["orders", 1, 3] = next(iter(transaction.values))
    with pytest.raises(Violation, match=r"^once:"):
        history.check(truth)


def test_nobody_reads_what_nobody_asked_to_commit() -> None:
    history, transaction = two_records(Outcome.ABORTED)
    value = next(iter(transaction.values))
    history.saw("a", FIRST, value, committed_only=False)
    with pytest.raises(Violation, match=r"^aborted read:"):
        history.saw("b", FIRST, value, committed_only=True)


def test_readers_do_not_go_back() -> None:
    history, transaction = two_records(Outcome.COMMITTED)
    value = next(iter(transaction.values))
    history.saw("a", FIRST, value, committed_only=True)
    with pytest.raises(Violation, match=r"^order of reading:"):
        history.saw("a", FIRST, value, committed_only=True)


def test_a_read_of_offsets_is_never_older_than_what_was_told_before() -> None:
    history, _ = two_records(Outcome.COMMITTED, has_offset=True)
    history.read_offset("t", None, 0.5)
    history.read_offset("t", 1, 2.0)
    with pytest.raises(Violation, match=r"^offsets:"):
        history.read_offset("t", None, 2.0)


@pytest.mark.parametrize("has_offset", [True, False])
def test_a_read_of_offsets_finds_no_aborted_one(has_offset: bool) -> None:
    history, _ = two_records(Outcome.ABORTED if has_offset else Outcome.COMMITTED, has_offset=has_offset)
    with pytest.raises(Violation, match=r"^offsets:"):
        history.read_offset("t", 1, 2.0)


def test_two_producers_never_have_one_epoch() -> None:
    history = TransactionHistory()
    history.granted("t/1", (1000, 0))
    history.granted("t/1", (1000, 0))
    with pytest.raises(Violation, match=r"^one producer:"):
        history.granted("t/2", (1000, 0))

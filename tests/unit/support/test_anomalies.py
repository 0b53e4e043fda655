"""The checker of transactional histories finds each anomaly that is planted in one, and none in valid ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.support.anomalies.checker import Anomaly, check
from tests.support.anomalies.cycles import short_cycle
from tests.support.anomalies.history import NEVER, Append, History, Operation, Outcome, Read, Transaction

LENGTH = 10


class Story:
    """Builds a history. Each operation takes ten units of time, from its own begin on."""

    def __init__(self) -> None:
        self.transactions: list[Transaction] = []

    def did(
        self, name: str, *operations: Operation, outcome: Outcome = Outcome.COMMITTED, commit_began: float = NEVER
    ) -> Story:
        began = commit_began if commit_began < NEVER else max(each.ended for each in operations) + 1
        ended = began + LENGTH if outcome is Outcome.COMMITTED else NEVER
        self.transactions.append(Transaction(name, list(operations), outcome, began, ended))
        return self

    def found(
        self,
        logs: Mapping[str, Sequence[tuple[int, str]]],
        *,
        interleaved: bool = True,
        finished: Sequence[tuple[str, str]] = (),
    ) -> dict[Anomaly, str]:
        history = History(self.transactions, {key: list(log) for key, log in logs.items()})
        findings = check(history, interleaved=interleaved, finished=finished)
        return {each.anomaly: each.sentence for each in findings}


def append(key: str, value: str, at: float, offset: int | None = None) -> Append:
    return Append(key, value, at, at + LENGTH, offset)


def read(
    key: str, at: float, *records: tuple[int, str], first: int = 0, end: int | None = None, group: str = ""
) -> Read:
    last = max((offset for offset, _ in records), default=first - 1)
    return Read(key, first, last + 1 if end is None else end, records, at, at + LENGTH, group=group)


def test_a_valid_history() -> None:
    story = Story().did("T1", append("x", "a", 0, 0), append("y", "b", 10, 0))
    story.did("T2", read("x", 50, (0, "a")), append("x", "c", 60, 2))
    story.did("T3", append("x", "d", 60, 4), outcome=Outcome.ABORTED)
    story.did("R", read("x", 100, (0, "a"), (2, "c")), read("y", 110, (0, "b")))
    assert story.found({"x": [(0, "a"), (2, "c")], "y": [(0, "b")]}) == {}


def test_lost_append() -> None:
    story = Story().did("T1", append("x", "a", 0, 0), append("x", "b", 10, 1))
    assert story.found({"x": [(0, "a")]}) == {Anomaly.LOST: "b of T1 (committed) is not in x"}


def test_read_and_lost() -> None:
    """Its commit has an unknown outcome, but a reader has seen it."""
    story = Story().did("T1", append("x", "a", 0, 0), outcome=Outcome.UNKNOWN).did("R", read("x", 50, (0, "a")))
    assert story.found({"x": []}) == {
        Anomaly.LOST: "R read x from 0 to 1 and got a of T1 (unknown), which is not there in the end"
    }


def test_a_commit_with_an_unknown_outcome_may_be_there() -> None:
    story = Story().did("T1", append("x", "a", 0), append("y", "b", 10), outcome=Outcome.UNKNOWN)
    assert story.found({"x": [(0, "a")], "y": [(3, "b")]}) == {}
    assert story.found({"x": [], "y": []}) == {}


def test_torn_transaction() -> None:
    story = Story().did("T1", append("x", "a", 0), append("y", "b", 10), outcome=Outcome.UNKNOWN)
    found = story.found({"x": [(0, "a")], "y": []})
    assert found == {Anomaly.TORN: "of T1 (unknown), 1 are there, but not b in y"}


def test_duplicate_append() -> None:
    story = Story().did("T1", append("x", "a", 0, 0))
    found = story.found({"x": [(0, "a"), (1, "a")]})
    assert Anomaly.DUPLICATE in found
    assert "a is at" in found[Anomaly.DUPLICATE]


def test_a_value_that_is_elsewhere_than_acknowledged() -> None:
    assert Anomaly.DUPLICATE in Story().did("T1", append("x", "a", 0, 5)).found({"x": [(4, "a")]})


def test_two_values_at_one_offset() -> None:
    story = Story().did("T1", append("x", "a", 0, 3)).did("T2", append("x", "b", 0, 3), outcome=Outcome.ABORTED)
    assert story.found({"x": [(3, "a")]}) == {
        Anomaly.INCONSISTENT: "3 of x has a and, according to its acknowledgement, b"
    }


def test_a_value_of_nobody() -> None:
    story = Story().did("T1", append("x", "a", 0, 0))
    assert story.found({"x": [(0, "a"), (1, "z")]}) == {
        Anomaly.INVENTED: "z at 1 of x, according to the log at the end"
    }


@pytest.mark.parametrize("where", ["log", "read"])
def test_aborted_read(where: str) -> None:
    story = Story().did("T1", append("x", "a", 0, 0), outcome=Outcome.ABORTED)
    if where == "read":
        story.did("R", read("x", 50, (0, "a")))
    by = "R" if where == "read" else "the log at the end"
    assert story.found({"x": [(0, "a")] if where == "log" else []}) == {
        Anomaly.ABORTED_READ: f"a of T1 (aborted) at 0 of x, according to {by}"
    }


def test_intermediate_read() -> None:
    story = Story().did("T1", append("x", "a", 0, 0), append("x", "b", 10, 1))
    story.did("R", read("x", 50, (0, "a"))._replace(is_to_the_end=True))
    found = story.found({"x": [(0, "a"), (1, "b")]})
    assert found == {Anomaly.INTERMEDIATE_READ: "R read x from 0 to 1, up to the end, without b of T1 (committed) at 1"}


def test_a_read_that_an_open_transaction_ends_is_valid_if_appends_interleave() -> None:
    story = Story().did("T1", append("x", "a", 0, 0), append("x", "b", 10, 2)).did("T2", append("x", "c", 5, 1))
    story.did("R", read("x", 50, (0, "a"))._replace(is_to_the_end=True))
    log = {"x": [(0, "a"), (1, "c"), (2, "b")]}
    assert story.found(log) == {}
    assert Anomaly.INTERMEDIATE_READ in story.found(log, interleaved=False)


def test_a_read_of_a_part_is_valid_if_it_took_less_than_there_was() -> None:
    story = Story().did("T1", append("x", "a", 0, 0), append("x", "b", 10, 1)).did("R", read("x", 50, (0, "a")))
    assert story.found({"x": [(0, "a"), (1, "b")]}) == {}


def test_write_cycle() -> None:
    """Valid if appends of concurrent transactions interleave."""
    story = Story().did("T1", append("x", "a", 0), append("y", "b", 50))
    story.did("T2", append("y", "c", 0), append("x", "d", 50))
    logs = {"x": [(0, "a"), (1, "d")], "y": [(0, "c"), (1, "b")]}
    assert story.found(logs, interleaved=False) == {
        Anomaly.WRITE_CYCLE: "T2 appended c to y before T1 b; T1 appended a to x before T2 d"
    }
    assert story.found(logs) == {}


@pytest.mark.parametrize("interleaved", [True, False])
def test_circular_information_flow(interleaved: bool) -> None:
    """Each transaction read what the other one appended."""
    story = Story().did("T1", append("x", "a", 0), read("y", 20, (0, "b")), commit_began=30)
    story.did("T2", append("y", "b", 0), read("x", 20, (0, "a")), commit_began=30)
    found = story.found({"x": [(0, "a")], "y": [(0, "b")]}, interleaved=interleaved)
    assert set(found) == {Anomaly.CIRCULAR}
    assert "a" in found[Anomaly.CIRCULAR]
    assert "b" in found[Anomaly.CIRCULAR]


def test_circular_information_flow_without_times() -> None:
    story = Story()
    for name, own, other in (("T1", "x", "y"), ("T2", "y", "x")):
        steps: list[Operation] = [Append(own, f"in {own}", 0), Read(other, 0, 1, ((0, f"in {other}"),), 0, NEVER)]
        story.transactions.append(Transaction(name, steps, Outcome.COMMITTED, 0))
    found = story.found({"x": [(0, "in x")], "y": [(0, "in y")]})
    assert found[Anomaly.CIRCULAR].count("wr: the read returned") == 2


def test_an_append_that_follows_a_read_stands_behind_what_was_read() -> None:
    """T2 read a of T1, then appended to y. The append of T1 to y stands behind it, and T1 was committed by then."""
    story = Story().did("T1", append("x", "a", 0), append("y", "b", 10))
    story.did("T2", read("x", 40, (0, "a")), append("y", "c", 60))
    found = story.found({"x": [(0, "a")], "y": [(0, "c"), (1, "b")]})
    assert set(found) <= {Anomaly.CIRCULAR, Anomaly.ORDER}
    assert found


def test_order_against_real_time() -> None:
    story = Story().did("T1", append("x", "a", 0)).did("T2", append("x", "b", 100))
    found = story.found({"x": [(0, "b"), (1, "a")]})
    assert set(found) == {Anomaly.ORDER}
    assert "the append of b to x by T2 precedes the next (ww: they are at 0 and 1 of x)" in found[Anomaly.ORDER]
    assert "the commit of T1 precedes the next (before: it had ended when the next one began)" in found[Anomaly.ORDER]


def test_a_read_before_the_commit_was_requested() -> None:
    story = Story().did("T1", append("x", "a", 0, 0), commit_began=100).did("R", read("x", 50, (0, "a")))
    found = story.found({"x": [(0, "a")]})
    assert set(found) == {Anomaly.CIRCULAR}
    assert "the commit of T1 precedes the next (wr: the read returned a)" in found[Anomaly.CIRCULAR]


def test_skipped() -> None:
    story = Story().did("T1", append("x", "a", 0, 0), append("x", "b", 10, 1), append("x", "c", 20, 2))
    story.did("R", read("x", 50, (0, "a"), (2, "c")))
    found = story.found({"x": [(0, "a"), (1, "b"), (2, "c")]})
    assert found == {Anomaly.SKIPPED: "R read x from 0 to 3 and did not get b at 1"}


@pytest.mark.parametrize(("records", "first"), [([(1, "b"), (0, "a")], 0), ([(0, "a"), (1, "b")], 1)])
def test_non_monotonic_read(records: list[tuple[int, str]], first: int) -> None:
    story = Story().did("T1", append("x", "a", 0, 0), append("x", "b", 10, 1))
    story.did("R", read("x", 50, *records, first=first))
    assert set(story.found({"x": [(0, "a"), (1, "b")]})) == {Anomaly.NON_MONOTONIC}


def test_a_transaction_that_reads_its_own_value() -> None:
    story = Story().did("T1", append("x", "a", 0, 0), read("x", 20, (0, "a")))
    found = story.found({"x": [(0, "a")]})
    assert found[Anomaly.INTERNAL] == "T1 read x from 0 to 1 and got its own a"


def test_a_transaction_whose_appends_are_reordered() -> None:
    story = Story().did("T1", append("x", "a", 0), append("x", "b", 5))
    found = story.found({"x": [(0, "b"), (1, "a")]})
    assert found == {Anomaly.INTERNAL: "T1 (committed) appended a to x, then b; they are at 1 and 0"}


def test_processed_twice_and_unprocessed() -> None:
    story = Story().did("T1", append("x", "a", 0, 0), append("x", "b", 10, 1))
    story.did("W1", read("x", 50, (0, "a"), group="g"), append("y", "a1", 60, 0))
    story.did("W2", read("x", 50, (0, "a"), group="g"), append("y", "a2", 60, 1))
    logs = {"x": [(0, "a"), (1, "b")], "y": [(0, "a1"), (1, "a2")]}
    assert story.found(logs) == {Anomaly.PROCESSED_TWICE: "a at 0 of x by W1 (committed) and W2 (committed), group g"}
    found = story.found(logs, finished=[("g", "x")])
    assert found[Anomaly.UNPROCESSED] == "b at 1 of x, group g"


def test_an_aborted_transaction_processes_nothing() -> None:
    story = Story().did("T1", append("x", "a", 0, 0))
    story.did("W1", read("x", 50, (0, "a"), group="g"), append("y", "a1", 60, 0), outcome=Outcome.ABORTED)
    story.did("W2", read("x", 80, (0, "a"), group="g"), append("y", "a2", 90, 2))
    assert story.found({"x": [(0, "a")], "y": [(2, "a2")]}, finished=[("g", "x")]) == {}


def test_values_are_unique() -> None:
    story = Story().did("T1", append("x", "a", 0)).did("T2", append("x", "a", 50))
    with pytest.raises(ValueError, match="a is appended twice"):
        story.found({"x": []})


def test_the_shortest_of_two_cycles() -> None:
    assert short_cycle({1: [2], 2: [3, 1], 3: [4], 4: [1]}) in ([1, 2], [2, 1])
    assert short_cycle({1: [2], 2: [3]}) == []

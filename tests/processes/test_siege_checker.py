"""The siege's checker finds each anomaly in a history that has it, and none in a clean one."""

from __future__ import annotations

import pytest

from tests.processes.siege.checker import check
from tests.processes.siege.findings import Anomaly
from tests.processes.siege.history import History, Run, runs_of
from tests.processes.siege.values import identify, payload, value_id

WRITER = """
    1 source - 7 confluent 1
    1 source - 8 plain 0
    10 send p 7 0 4
    20 ok p 7 0 0 5000
    21 ok p 7 1 1 5000
    30 unknown p 7 2 timeout
    40 ok p 7 3 2 9000
"""
READER = """
    5 assign p 0
    25 poll p 0:7:0:2
    50 poll p 2:7:3:1
"""
FINAL = """
    90 assign p 0
    90 final p 3
    91 poll p 0:7:0:2 2:7:3:1
"""


def history_of(**processes: str) -> History:
    history = History()
    for name, text in processes.items():
        lines = ("\t".join(line.split()) + "\n" for line in text.splitlines() if line.strip())
        history.add(name, lines)
    return history


def anomalies(*, writer: str = WRITER, reader: str = READER, final: str = FINAL) -> set[str]:
    return set(check(history_of(writer=writer, reader=reader, final=final)).counts)


def test_a_good_history() -> None:
    assert anomalies() == set()


def test_an_unknown_value_may_be_there() -> None:
    there = "90 assign p 0\n90 final p 4\n91 poll p 0:7:0:4"
    writer = WRITER.replace("40 ok p 7 3 2", "40 ok p 7 3 3")
    assert anomalies(writer=writer, reader="", final=there) == set()


def test_gaps_without_values_are_no_skips() -> None:
    writer = WRITER.replace("40 ok p 7 3 2", "40 ok p 7 3 5")
    reader = READER.replace("2:7:3:1", "5:7:3:1")
    final = "90 assign p 0\n90 final p 6\n91 poll p 0:7:0:2\n92 poll p 5:7:3:1"
    assert anomalies(writer=writer, reader=reader, final=final) == set()


def test_acknowledged_and_lost() -> None:
    final = "90 final p 3\n91 poll p 0:7:0:1\n92 poll p 2:7:3:1"
    assert anomalies(reader="", final=final) == {Anomaly.LOST, Anomaly.SKIPPED}


def test_acknowledged_without_an_offset() -> None:
    """librdkafka does not know the offset of a record that was confirmed only by the reply to a later one."""
    there = "90 assign p 0\n90 final p 4\n91 poll p 0:7:0:4"
    writer = WRITER.replace("30 unknown p 7 2 timeout", "30 ok p 7 2 -1 5000").replace("40 ok p 7 3 2", "40 ok p 7 3 3")
    assert anomalies(writer=writer, reader="", final=there) == set()
    without = "90 assign p 0\n90 final p 4\n91 poll p 0:7:0:2 3:7:3:1"
    assert anomalies(writer=writer, reader="", final=without) == {Anomaly.LOST}


def test_read_and_lost() -> None:
    """The value was not acknowledged, but a reader has seen it."""
    reader = "5 assign p 0\n25 poll p 0:7:0:3\n"
    writer = WRITER.replace("40 ok p 7 3 2", "40 ok p 7 3 3")
    final = "90 final p 4\n91 poll p 0:7:0:2\n92 poll p 3:7:3:1"
    assert anomalies(writer=writer, reader=reader, final=final) == {Anomaly.LOST, Anomaly.SKIPPED}


def test_unseen_after_healing() -> None:
    assert anomalies(final="90 assign p 0\n90 final p 2\n91 poll p 0:7:0:2") == {Anomaly.UNSEEN}


def test_lost_in_a_run_that_was_broken_off() -> None:
    reader = "5 assign p 1\n25 poll p 1:7:1:1 2:7:3:1"
    assert anomalies(reader=reader, final="") == {Anomaly.LOST}


def test_duplicate() -> None:
    final = FINAL.replace("final p 3", "final p 4") + "92 poll p 3:7:3:1"
    assert anomalies(final=final) == {Anomaly.DUPLICATE}


def test_inconsistent_offset() -> None:
    """The acknowledgement and a reader disagree about offset 2."""
    found = anomalies(reader="5 assign p 0\n25 poll p 0:7:0:2 2:7:2:1")
    assert Anomaly.INCONSISTENT in found


def test_reordered() -> None:
    writer = "1 source - 7 c 1\n10 send p 7 0 2\n20 ok p 7 0 1 5\n21 ok p 7 1 0 5"
    final = "90 final p 2\n91 poll p 0:7:1:1 1:7:0:1"
    assert anomalies(writer=writer, reader="", final=final) == {Anomaly.REORDERED}


def test_a_producer_without_idempotence_keeps_no_order() -> None:
    writer = "1 source - 8 c 0\n10 send p 8 0 2\n20 ok p 8 0 1 5\n21 ok p 8 1 0 5"
    final = "90 final p 2\n91 poll p 0:8:1:1 1:8:0:1"
    assert anomalies(writer=writer, reader="", final=final) == set()


@pytest.mark.parametrize(
    "reader",
    [
        "5 assign p 0\n25 poll p 0:7:0:1 2:7:3:1",
        "5 assign p 0\n25 poll p 0:7:0:1\n26 poll p 2:7:3:1",
        "5 assign p 0\n25 poll p 1:7:1:1 2:7:3:1",
    ],
    ids=["inside a poll", "between polls", "at the start"],
)
def test_skipped(reader: str) -> None:
    assert anomalies(reader=reader) == {Anomaly.SKIPPED}


def test_backwards() -> None:
    assert anomalies(reader="5 assign p 0\n25 poll p 0:7:0:2\n26 poll p 1:7:1:1") == {Anomaly.BACKWARDS}


def test_a_reader_may_go_back_on_purpose() -> None:
    assert anomalies(reader="5 assign p 0\n25 poll p 0:7:0:2\n26 assign p 1\n27 poll p 1:7:1:1") == set()


def test_aborted_read() -> None:
    writer = WRITER + "60 send p 8 0 1\n61 fail p 8 0 NOT_ENOUGH_REPLICAS"
    final = FINAL.replace("final p 3", "final p 4") + "92 poll p 3:8:0:1"
    assert anomalies(writer=writer, final=final) == {Anomaly.ABORTED}


def test_stale_end() -> None:
    """Offset 1 was acknowledged before time 22."""
    assert anomalies(reader=READER + "23 end p 1 22") == {Anomaly.STALE}


def test_an_end_that_was_asked_for_before_the_acknowledgement() -> None:
    assert anomalies(reader=READER + "50 end p 1 20") == set()


def test_never_sent() -> None:
    final = FINAL.replace("final p 3", "final p 4") + "92 poll p 3:7:4:1"
    assert anomalies(final=final) == {Anomaly.NEVER_SENT}


def test_changed() -> None:
    assert anomalies(reader=READER + "60 changed p 2") == {Anomaly.CHANGED}


def test_what_a_run_found_beside_its_history() -> None:
    assert anomalies(reader=READER + "60 broken - exit") == {Anomaly.BROKEN}


def test_partitions_are_judged_apart() -> None:
    history = history_of(writer=WRITER, reader=READER, final=FINAL, other=FINAL.replace(" p ", " q "))
    findings = check(history)
    assert set(findings.counts) == {Anomaly.NEVER_SENT}
    assert findings.counts[Anomaly.NEVER_SENT] == 3
    assert all("q:" in line for line in findings.lines()[1:])


def test_a_line_that_was_cut_off_does_not_count() -> None:
    history = History()
    history.add("writer", ["10\tsend\tp\t7\t0\t1\n", "20\tok\tp\t7\t0\t0"])
    assert not history.partitions["p"].acknowledged


def test_runs() -> None:
    records = [(0, value_id(1, 0)), (1, value_id(1, 1)), (2, value_id(2, 0)), (4, value_id(2, 1))]
    assert runs_of(records) == [Run(0, value_id(1, 0), 2), Run(2, value_id(2, 0), 1), Run(4, value_id(2, 1), 1)]


def test_a_value_that_changed_on_its_way_is_known() -> None:
    data = payload(3, 5)
    assert identify(data) == value_id(3, 5)
    assert identify(data[:-1]) is None
    assert identify(b"") is None

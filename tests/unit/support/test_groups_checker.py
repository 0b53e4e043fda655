"""The checker of real groups finds each anomaly, and tolerates the permitted faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.groups.checker import Anomaly, Findings, check
from tests.processes.groups.history import Follower, GroupHistory, Recorder, Span, read_history

SESSION_US = 1000

GOOD = """
1 harness started A
2 harness started B
10 A assigned 0 1 a
11 A processed 0:0-9
12 A sends 1 1 0:10
13 A acked 1
20 A revoked 0
30 A assigned 1 2 a
31 B assigned 0 2 b
32 B processed 0:10-19
33 A processed 1:0-4
34 B sends 1 2 0:20
35 B acked 1
36 A sends 2 2 1:5
37 A acked 2
90 harness end 0 20
91 harness end 1 5
92 harness committed 0 20
93 harness committed 1 5
"""


def history_of(text: str) -> GroupHistory:
    """Builds a history from lines as in the files, with the process after the time. A later line replaces an earlier
    one with the same time."""
    history = GroupHistory()
    lines = {int(line.split()[0]): line.split() for line in text.strip().splitlines()}
    for at_us, (_, process, *rest) in sorted(lines.items()):
        history.add(process, "\t".join((str(at_us), *(rest if len(rest) > 1 else (*rest, "-")))))
    return history


def judged(*changes: str) -> Findings:
    return check(history_of(GOOD + "\n".join(changes)), SESSION_US)


def test_a_good_history_has_no_anomaly() -> None:
    assert judged().ok, str(judged())


@pytest.mark.parametrize(
    ("anomaly", "changes"),
    [
        pytest.param(Anomaly.UNPROCESSED, ["32 B processed 0:10-18", "34 B sends 1 2 0:19"], id="the last record"),
        pytest.param(Anomaly.UNPROCESSED, ["11 A processed 0:1-9", "12 A sends 1 1 0:0"], id="the first record"),
        pytest.param(Anomaly.TWO_OWNERS, ["31 B assigned 0 1 b"], id="in one generation"),
        pytest.param(Anomaly.OVERLAP, ["20 A revoked 5", "40 A revoked 0"], id="given up too late"),
        pytest.param(Anomaly.OVERLAP, ["20 A revoked 5", "40 harness killed A"], id="killed, and nobody was away"),
        pytest.param(Anomaly.OVERLAP, ["20 A revoked 5"], id="both until the end"),
        pytest.param(
            Anomaly.ZOMBIE_COMMIT,
            ["20 A revoked 5", "40 A sends 3 1 0:10", "41 A acked 3", "42 A lost 0"],
            id="of a former owner",
        ),
        pytest.param(Anomaly.ZOMBIE_COMMIT, ["40 harness zombie A 0 1 none"], id="in the name of a former owner"),
        pytest.param(Anomaly.COMMIT_LOST, ["92 harness committed 0 19"], id="the last commit"),
        pytest.param(Anomaly.COMMIT_LOST, ["92 harness committed 5 0"], id="all commits"),
        pytest.param(Anomaly.WENT_BACK, ["32 B processed 0:9-19"], id="began below a commit"),
        pytest.param(Anomaly.WENT_BACK, ["32 B processed 0:10-15 0:15-19"], id="twice by one owner"),
        pytest.param(Anomaly.SKIPPED, ["32 B processed 0:11-19", "33 A processed 1:0-4"], id="began too far"),
        pytest.param(Anomaly.SKIPPED, ["32 B processed 0:10-12 0:14-19"], id="left one out"),
        pytest.param(Anomaly.SKIPPED, ["12 A sends 1 1 0:9"], id="began behind all commits"),
        pytest.param(Anomaly.TOO_FAR, ["12 A sends 1 1 0:11"], id="more than it processed"),
        pytest.param(Anomaly.GENERATION_BACK, ["10 A assigned 0 3 a"], id="of a member"),
        pytest.param(Anomaly.UNFINISHED, ["40 B revoked 0"], id="nobody has it"),
        pytest.param(Anomaly.UNFINISHED, ["40 harness killed B"], id="a dead one has it"),
        pytest.param(Anomaly.UNFINISHED, ["90 harness end 0 21"], id="not all committed"),
        pytest.param(Anomaly.UNFINISHED, ["3 harness started C", "40 A assigned 2 2 a"], id="uneven shares"),
        pytest.param(Anomaly.BROKEN, ["40 harness broken something"], id="what the run said"),
        pytest.param(Anomaly.BROKEN, ["40 A processed 0:20-20"], id="processed without having it"),
        pytest.param(Anomaly.BROKEN, ["40 A sends 3 2 0:10", "41 A acked 3"], id="committed without having it"),
    ],
)
def test_finds(anomaly: Anomaly, changes: list[str]) -> None:
    findings = judged(*changes)
    assert anomaly in findings.sentences, str(findings)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(["20 A lost 5", "40 A lost 0"], id="told late that it lost its partitions"),
        pytest.param(
            ["20 harness paused A", "38 harness resumed A", "39 A processed 0:10-12", "40 A revoked 0"],
            id="paused, and given up late",
        ),
        pytest.param(["20 A revoked 5", "39 A stalled 19", "40 A revoked 0"], id="without time, and given up late"),
        pytest.param(
            ["20 A revoked 5", "40 A sends 3 1 0:12", "41 A refused 3 x", "42 A lost 0", "38 A processed 0:10-11"],
            id="the commit of a former owner is refused",
        ),
        pytest.param(["13 A unknown 1 x", "32 B processed 0:0-19"], id="a commit of unknown outcome was not committed"),
        pytest.param(["13 A refused 1 x"], id="committed, and refused when it was sent again"),
        pytest.param(["13 A unknown 1 x"], id="a commit of unknown outcome was committed"),
        pytest.param(["40 harness zombie A 0 1 unknown_member_id"], id="refused in the name of a former owner"),
    ],
)
def test_forgives(changes: list[str]) -> None:
    findings = judged(*changes)
    assert findings.ok, str(findings)


def test_what_a_member_has_not_confirmed_may_have_two_owners_for_a_moment() -> None:
    """In the consumer protocol, and only at its beginning: with the longest tolerated wait."""
    lines = ["20 A revoked 5", "40 A sends 3 1 0:10", "41 A acked 3", "42 A revoked 0"]
    history = history_of(GOOD + "\n".join(lines))
    assert check(history, SESSION_US, unconfirmed_us=22).ok, str(check(history, SESSION_US, unconfirmed_us=22))
    assert set(check(history, SESSION_US, unconfirmed_us=21).sentences) == {Anomaly.OVERLAP, Anomaly.ZOMBIE_COMMIT}


def test_a_late_assignment_of_a_paused_member_takes_nothing_from_the_owner() -> None:
    """B learns of generation 2 when generation 3 has begun without it."""
    findings = judged(
        "21 harness paused B",
        "31 A assigned 0 3 a",
        "32 A processed 0:10-19",
        "34 harness resumed B",
        "35 B assigned 0 2 b",
        "38 A sends 3 3 0:20",
        "39 A acked 3",
        "40 B lost 0",
        "41 B assigned 1 4 b",
        "42 B processed 1:5-5",
        "43 B sends 4 4 1:6",
        "44 B acked 4",
        "29 A revoked 7",
    )
    assert Anomaly.ZOMBIE_COMMIT not in findings.sentences, str(findings)
    assert Anomaly.TWO_OWNERS not in findings.sentences, str(findings)


def test_what_a_process_wrote_is_read_back_as_it_grows(tmp_path: Path) -> None:
    harness, member = Recorder(tmp_path / "harness.history"), Recorder(tmp_path / "A.history")
    follower = Follower(tmp_path)
    harness.write("started", "A")
    member.write("assigned", "0,1", 7, "a")
    assert set(follower.catch_up().owned["A"]) == {0, 1}
    member.write("processed", "0:0-4", "1:0-0")
    member.write("sends", 1, 7, "0:5", "1:1")
    member.write("acked", 1)
    (path := tmp_path / "A.history").write_text(path.read_text() + "12345\tproc")  # killed in the middle of a line
    assert follower.catch_up().commits == read_history(tmp_path).commits
    (commit,) = follower.history.commits
    assert (commit.offsets, commit.outcome, commit.generation) == ({0: 5, 1: 1}, "acked", 7)


def test_a_partition_may_have_two_owners_while_brokers_fail() -> None:
    """A member that cannot reach its coordinator does not learn of its loss. Its commits are still rejected."""
    history = history_of(GOOD + "\n".join(["20 A revoked 5", "40 A revoked 0"]))
    history.disturbed = [Span(25, 35)]
    assert check(history, SESSION_US).ok, str(check(history, SESSION_US))
    history.disturbed = [Span(1_000_000_000, 1_000_000_001)]
    assert set(check(history, SESSION_US).sentences) == {Anomaly.OVERLAP}

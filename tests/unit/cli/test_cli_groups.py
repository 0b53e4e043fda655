"""The commands for groups without a broker: target offsets, user input, wrong arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cli import main
from ottla.cli.failures import CommandError
from ottla.cli.groups.commands import duration_text
from ottla.cli.groups.offsets_plan import (
    OffsetChange,
    PartitionOffsets,
    ResetTarget,
    offsets_as_csv,
    parse_topic,
    plan_offsets,
    read_offsets,
)
from ottla.cli.time_options import since_ms
from ottla.client.consumer.types import TopicPartition

AT = TopicPartition("orders", 0)
NOBODY = "127.0.0.1:1"


def planned(aim: ResetTarget, number: int = 0, *, committed: int | None = 50, found: int | None = None) -> OffsetChange:
    place = PartitionOffsets(AT, committed, first=10, end=100)
    (change,) = plan_offsets([place], aim, number, {} if found is None else {AT: found})
    return change


@pytest.mark.parametrize(
    ("aim", "number", "found", "new"),
    [
        (ResetTarget.EARLIEST, 0, None, 10),
        (ResetTarget.LATEST, 0, None, 100),
        (ResetTarget.CURRENT, 0, None, 50),
        (ResetTarget.OFFSET, 70, None, 70),
        (ResetTarget.SHIFT, 5, None, 55),
        (ResetTarget.SHIFT, -5, None, 45),
        (ResetTarget.TIME, 1_700_000_000_000, 33, 33),
        (ResetTarget.FILE, 0, 44, 44),
    ],
)
def test_where_offsets_go(aim: ResetTarget, number: int, found: int | None, new: int) -> None:
    change = planned(aim, number, found=found)
    assert (change.old, change.new, change.remark) == (50, new, None)


@pytest.mark.parametrize(
    ("aim", "number", "new", "remark"),
    [
        (ResetTarget.OFFSET, 9, 10, "9 is before the start of the log at 10"),
        (ResetTarget.OFFSET, 101, 100, "101 is after the end of the log at 100"),
        (ResetTarget.SHIFT, -1000, 10, "-950 is before the start of the log at 10"),
        (ResetTarget.SHIFT, 1000, 100, "1050 is after the end of the log at 100"),
    ],
)
def test_an_offset_that_the_log_does_not_have(aim: ResetTarget, number: int, new: int, remark: str) -> None:
    change = planned(aim, number)
    assert (change.new, change.remark) == (new, remark)


def test_current_brings_a_lost_offset_back_into_the_log() -> None:
    change = planned(ResetTarget.CURRENT, committed=3)
    assert (change.old, change.new) == (3, 10)
    assert change.remark == "3 is before the start of the log at 10"


def test_a_time_after_the_last_record_is_the_end() -> None:
    change = planned(ResetTarget.TIME, 1_700_000_000_000, found=-1)
    assert (change.new, change.remark) == (100, "no record is that recent: end of the log")


@pytest.mark.parametrize("aim", [ResetTarget.SHIFT, ResetTarget.CURRENT])
def test_nothing_committed_cannot_be_shifted(aim: ResetTarget) -> None:
    with pytest.raises(CommandError, match="orders-0: the group has no committed offset for this partition"):
        planned(aim, 1, committed=None)


def test_a_group_that_is_new_to_a_partition() -> None:
    change = planned(ResetTarget.LATEST, committed=None)
    assert (change.old, change.new) == (None, 100)
    assert offsets_as_csv([change, planned(ResetTarget.LATEST)]) == "orders,0,50\n", (
        "what was not there is not gone back to"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", ("orders", None)),
        ("orders:3", ("orders", [3])),
        ("orders:0,3,5-7", ("orders", [0, 3, 5, 6, 7])),
        ("orders: 1, 1", ("orders", [1])),
    ],
)
def test_topics_and_partitions(text: str, expected: tuple[str, list[int] | None]) -> None:
    assert parse_topic(text) == expected


@pytest.mark.parametrize("text", ["", ":1", "orders:", "orders:x", "orders:3-1", "orders:-1", "orders:0-999999999"])
def test_topics_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is n"):
        parse_topic(text)


def test_offsets_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "offsets.csv"
    path.write_text('# of yesterday\norders,0,12\n\nours,orders,1,13\ntheirs,orders,2,14\n"orders",3,15\n')
    assert read_offsets(path, "ours") == {("orders", 0): 12, ("orders", 1): 13, ("orders", 3): 15}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("orders,0\n", "line 1: not in the format topic,partition,offset"),
        ("orders,0,5\norders,one,5\n", "line 2: not in the format topic,partition,offset"),
        ("orders,0,-1\n", "line 1: not in the format"),
        ("orders,0,5\norders,0,6\n", "line 2: orders-0 occurs twice"),
        ("theirs,orders,0,5\n", 'has no offsets of group "ours"'),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "offsets.csv"
    path.write_text(text)
    with pytest.raises(CommandError, match=sentence):
        read_offsets(path, "ours")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be read: No such file"):
        read_offsets(tmp_path / "nothing.csv", "ours")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (1.54, "1.5 s"),
        (125.0, "2 min 5 s"),
        (3600.0, "1 h"),
        (12_000.0, "3 h 20 min"),
        (349_300.0, "4 d 1 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize("text", ["1200000d", "1969-12-31T23:59:59Z", "0001-01-01"])
def test_no_time_is_before_1970(text: str) -> None:
    """-1 and -2 would be the ends of the log."""
    assert since_ms(text, 1_700_000_000_000) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["groups", "describe"],
        ["groups", "delete"],
        ["groups", "delete", "a", "b", "--topic", "orders"],
        ["groups", "delete", "a", "--topic", "orders:x"],
        ["groups", "reset", "g"],
        ["groups", "reset", "g", "--topic", "orders"],
        ["groups", "reset", "g", "--to-latest"],
        ["groups", "reset", "g", "--to-latest", "--topic", "orders", "--all-topics"],
        ["groups", "reset", "g", "--to-latest", "--to-earliest", "--topic", "orders"],
        ["groups", "reset", "g", "--to-offset", "0", "--shift-by", "0", "--topic", "orders"],
        ["groups", "reset", "g", "--to-offset", "-1", "--topic", "orders"],
        ["groups", "reset", "g", "--to-offset", "many", "--topic", "orders"],
        ["groups", "reset", "g", "--to-time", "yesterday", "--topic", "orders"],
        ["groups", "reset", "g", "--to-latest", "--topic", "orders:1-"],
        ["groups", "reset", "g", "--from-file", "offsets.csv", "--all-topics"],
    ],
)
def test_a_wrong_call_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err + captured.out


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["describe", "g"], ["delete", "g"], ["reset", "g", "--all-topics", "--to-latest"]],
)
def test_no_broker_is_1_and_a_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["groups", *arguments, "-b", NOBODY]) == 1
    expected = "ottla: no broker answered at 127.0.0.1:1: connection refused. Is `ottla up` running?\n"
    assert capsys.readouterr().err == expected

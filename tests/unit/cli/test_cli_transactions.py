"""The commands for transactions without a broker: wrong arguments, and no broker at all."""

from __future__ import annotations

import pytest

from ottla.cli import main
from ottla.cli.time_options import duration_ms

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 90_000), ("1h30m", 5_400_000), ("1.5 s", 1500), ("0s", 0), ("10", None), ("", None), ("soon", None)],
)
def test_durations(text: str, expected: int | None) -> None:
    assert duration_ms(text) == expected


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["describe"], "Missing argument"),
        (["list", "--state", "Open"], '"Open" is not a state; the states are Empty, Ongoing'),
        (["list", "--min-duration", "long"], '"long" is not a duration'),
        (["list", "--producer-id", "-1"], "is not in the range 0<=x"),
        (["list", "--topic", "orders"], "--topic needs --hanging"),
        (["list", "--hanging", "--topic", "orders:x"], "is neither a partition nor a range"),
        (["list", "--hanging", "--state", "Ongoing"], "a hanging transaction has no state"),
        (["abort"], "give a transactional id, or --topic"),
        (["abort", "id", "--topic", "orders"], "give a transactional id, or --topic"),
        (["abort", "--topic", "orders", "--partition", "0"], "give a transactional id, or --topic"),
        (["abort", "--topic", "t", "--partition", "0", "--start-offset", "0", "--fence"], "--fence needs a"),
    ],
)
def test_a_wrong_call_is_2(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transactions", *arguments]) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err + captured.out
    words = " ".join(captured.err.replace("│", " ").split())
    assert sentence in words


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["list", "--hanging"],
        ["describe", "id"],
        ["abort", "id"],
        ["abort", "-t", "t", "-p", "0", "--start-offset", "0"],
    ],
)
def test_no_broker_is_1_and_a_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transactions", *arguments, "-b", NOBODY]) == 1
    expected = "ottla: no broker answered at 127.0.0.1:1: connection refused. Is `ottla up` running?\n"
    assert capsys.readouterr().err == expected

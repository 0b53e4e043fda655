"""Commands that cannot be carried out fail at once and change nothing."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ottla.cli import main
from ottla.cli.pipeline import spark as pipeline_spark

NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if Spark starts, which may take minutes on a busy machine: the error must come before."""

    def started(*_: object) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr(pipeline_spark, "_start_in_thread", started)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["restore", "t", "--at", "yesterday", "--to", "csv:x.csv"], 2),
        (["restore", "t", "--at", "0:1,0", "--to", "csv:x.csv"], 2),
        (["restore", "t", "--at", "end", "--to", "nowhere"], 1),
        (["restore", "t", "--at", "end", "--to", "csv:/dev/null"], 1),
        (["restore", "t", "--at", "end", "--to", "csv:x.csv", "--offline"], 2),
        (["materialize", "t", "--table", "d", "--offline"], 2),
        (["materialize", "t", "--table", "d", "-b", NOBODY], 1),
        (["sessions", "t", "--checkpoints", "d", "--gap", "long"], 2),
        (["sessions", "t", "--checkpoints", "d", "-b", NOBODY], 1),
        (["archive", "run", "t", "--into", "d", "-b", NOBODY], 1),
        (["archive", "show", "/nope"], 1),
        (["archive", "verify", "/nope"], 1),
        (["archive", "compact", "/nope"], 1),
    ],
)
def test_a_pipeline_checks_before_spark_starts(
    arguments: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pipeline", *arguments]) == code
    error = capsys.readouterr().err
    assert "internal error" not in error
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "arguments",
    [["backup", "list"], ["backup", "check"], ["restore", "postgres", "--to", "restored"]],
)
def test_a_store_that_is_not_there(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, "--store", "nope"]) == 1
    assert "the directory nope (--store) does not exist" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", [["tail", "t"], ["read", "t"], ["append", "t"], ["fence", "t"], ["trim", "t", "5"]])
def test_no_append_stream_is_said_at_once(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wal", *command, "--servers", NOBODY]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"ottla: no append stream: {NOBODY}: connection refused.")
    assert "--wal-port" in error


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://u@127.0.0.1:1/db", "refused"),
        ("postgresql://u@no.such.host.invalid/db", "resolve host"),
        ("foo", "connection info string"),
    ],
)
def test_a_database_that_cannot_be_reached_at_the_start(
    url: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker is not contacted before: nothing is created there."""
    with socket.create_server(("127.0.0.1", 0)) as broker:
        servers = f"127.0.0.1:{broker.getsockname()[1]}"
        assert main(["connect", "postgres-cdc", "--name", "n", "--url", url, "--table", "t", "-b", servers]) == 1
        error = capsys.readouterr().err
        assert reason in error
        assert "Starts again" not in error
        broker.setblocking(False)
        with pytest.raises(BlockingIOError):
            broker.accept()


def test_a_topic_without_a_data_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "dump", "orders", "--data", str(tmp_path / "no")]) == 1
    assert "choose it with --data" in capsys.readouterr().err
    assert main(["log", "dump", str(tmp_path), "--partition", "0"]) == 2

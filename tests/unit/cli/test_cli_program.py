"""Exit codes and messages of commands that need no broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla import __version__
from ottla.broker.storage.segment import segment_name
from ottla.cli import main
from ottla.cli.up.commands import default_data_dir
from ottla.protocol.records.record import Record, encode_batch

NOBODY = "127.0.0.1:1"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"ottla {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["up", "--prot", "1"],
        ["up", "--port", "70000"],
        ["up", "--storage", "tape"],
        ["topics", "create"],
        ["topics", "create", "t", "--config", "retention.ms"],
        ["topics", "alter", "t"],
        ["topics", "alter", "t", "-c", "a=1", "--delete-config", "a"],
        ["consume", "t", "--from-beginning", "--offset", "1"],
        ["consume", "t", "--since", "yesterday"],
        ["consume", "t", "--format", "%x"],
        ["produce", "t", "--acks", "2"],
        ["produce", "t", "--key-separator", ""],
    ],
)
def test_a_wrong_call_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err + captured.out


@pytest.mark.parametrize(
    "arguments",
    [["topics", "list"], ["topics", "create", "t"], ["topics", "describe", "t"], ["consume", "t"], ["produce", "t"]],
)
def test_no_broker_is_1_and_a_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "-b", NOBODY]) == 1
    expected = "ottla: no broker answered at 127.0.0.1:1: connection refused. Is `ottla up` running?\n"
    assert capsys.readouterr().err == expected


def test_debug_shows_where(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_DEBUG", "")
    assert main(["--debug", "topics", "list", "-b", NOBODY]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_config_file_with_a_typo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.properties"
    path.write_text("ottla.durabilty=cache\n")
    assert main(["up", "--config", str(path), "--data", str(tmp_path / "data")]) == 1
    error = capsys.readouterr().err
    assert f"{path}, line 1" in error
    assert "ottla.durability" in error


def test_a_config_file_that_asks_for_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.io.threads=8\ncreate.topic.policy.class.name=com.example.Policy\n")
    assert main(["up", "--config", str(path), "--data", str(tmp_path / "data")]) == 1
    error = capsys.readouterr().err
    assert f"{path}, line 2" in error
    assert "would not be enforced" in error
    assert not (tmp_path / "data").exists()


def test_verify_and_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Record(index, 0, b"k", b"value", (("h", b"1"),)) for index in range(3)]
    good = bytes(encode_batch(rows))
    path = tmp_path / segment_name(0)
    path.write_bytes(good)
    assert main(["log", "verify", str(tmp_path), "--records"]) == 0
    assert "1 file, 1 batch, 3 records" in capsys.readouterr().out
    assert main(["log", "dump", str(path), "--records"]) == 0
    printed = capsys.readouterr().out
    assert "offsets 0-2 records 3" in printed
    assert "key 'k' value 'value'" in printed
    path.write_bytes(good[:-1] + b"\x00")
    assert main(["log", "verify", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert f"damage: {path}, position 0, offset 0: the batch does not match its checksum" in captured.out
    assert "1 damaged place in" in captured.err


def test_verify_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "verify", str(tmp_path)]) == 1
    assert "has no segment files" in capsys.readouterr().err
    assert main(["log", "verify", str(tmp_path / "missing")]) == 1
    assert "no such file or directory" in capsys.readouterr().err


def test_the_default_data_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / "ottla"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / ".local" / "state" / "ottla"

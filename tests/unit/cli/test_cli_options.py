"""Options with wrong values are usage errors: exit code 2, a message, and nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer.main

from ottla.cli import main
from ottla.cli.program import MODULES, program_of
from ottla.protocol.model.addresses import split_address

NOBODY = "127.0.0.1:1"
BAD_SERVERS = ["foo:bar", "foo:99999", "foo:0", ":9092", "PLAINTEXT://host:9092", "a:b:c", ",", "two words:1", "[::1:9"]
TOO_LARGE = str(2**70)


def leaves(command: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Returns every command with its path."""
    found = [each for name, sub in getattr(command, "commands", {}).items() for each in leaves(sub, (*path, name))]
    return found or [(path, command)]


COMMANDS = leaves(typer.main.get_command(program_of(MODULES)))


@pytest.mark.parametrize("servers", BAD_SERVERS)
@pytest.mark.parametrize("command", [["topics", "list"], ["produce", "t"], ["consume", "t"], ["connect", "run", "f"]])
def test_a_bad_bootstrap_server_is_a_wrong_call(
    command: list[str], servers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "-b", servers]) == 2
    error = capsys.readouterr().err
    assert "--bootstrap" in error
    assert "internal error" not in error


def test_a_bad_bootstrap_server_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTTLA_BOOTSTRAP", "foo:bar")
    assert main(["topics", "list"]) == 2
    assert "foo:bar" in capsys.readouterr().err


@pytest.mark.parametrize("servers", ["foo:bar", "foo:99999", "foo", ""])
@pytest.mark.parametrize(
    "command",
    [
        ["wal", "tail", "t", "--servers"],
        ["wal", "append", "t", "-s"],
        ["connect", "sqlite", "x.db", "--log", "l", "--wal"],
        ["connect", "postgres-wal", "--wal"],
        ["restore", "sqlite", "--log", "l", "--to", "x", "--wal"],
        ["restore", "postgres", "--store", "s", "--to", "x", "--wal"],
        ["backup", "check", "--store", "s", "--wal"],
        ["backup", "postgres", "--store", "s", "--wal"],
    ],
)
def test_a_bad_address_of_an_append_stream_is_a_wrong_call(
    command: list[str], servers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, servers]) == 2
    assert "internal error" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "create", "t", "-p", "0"],
        ["topics", "create", "t", "-p", "-2"],
        ["topics", "create", "t", "-p", TOO_LARGE],
        ["topics", "create", "t", "--replication-factor", "40000"],
        ["topics", "alter", "t", "-p", "0"],
        ["produce", "t", "-p", "-1"],
        ["produce", "t", "-p", TOO_LARGE],
        ["produce", "t", "-K", "\\x"],
        ["consume", "t", "-p", "-1"],
        ["consume", "t", "-p", TOO_LARGE],
        ["consume", "t", "--offset", TOO_LARGE],
        ["consume", "t", "--timeout", "nan"],
        ["consume", "t", "--timeout", "inf"],
        ["consume", "t", "--since", "12:00"],
        ["groups", "reset", "g", "-t", "t", "--to-offset", TOO_LARGE],
        ["groups", "reset", "g", "-t", "t", "--shift-by", TOO_LARGE],
        ["transactions", "list", "--min-duration", "soon"],
        ["transactions", "list", "--producer-id", TOO_LARGE],
        ["broker", "drain", TOO_LARGE],
        ["broker", "drain", "1", "--timeout", "nan"],
        ["cluster", "reassign", "-t", "t", "-p", TOO_LARGE, "-r", "1"],
        ["connect", "file-sink", "--name", "n", "--topic", "t", "--into", "d", "--every", "nan"],
        ["sql", "--every", "often", "SHOW TOPICS"],
        ["pipeline", "archive", "run", "t", "--into", "d", "--every", "99999999999d"],
    ],
)
def test_a_number_out_of_range_is_a_wrong_call(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "-b", NOBODY]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["up", "--host", "foo:bar"],
        ["up", "--host", "http://x"],
        ["up", "--host", ""],
        ["up", "--log-level", "loud"],
        ["wal", "append", "t", "--acks", "most"],
        ["wal", "read", "t", "--from", TOO_LARGE],
        ["wal", "trim", "t", TOO_LARGE],
        ["wal", "tail", "t", "--partition", TOO_LARGE],
        ["connect", "postgres-wal", "--replicas", "0"],
        ["connect", "sqlite", "x.db", "--log", "l", "--durability", "tape"],
        ["connect", "sqlite", "x.db", "--log", "l", "--keep", "long"],
        ["restore", "postgres", "--store", "s", "--to", "x", "--port", "99999"],
        ["restore", "postgres", "--store", "s", "--to", "x", "--timeline", "0"],
        ["restore", "postgres", "--store", "s", "--to", "x", "--at", "yesterday"],
        ["restore", "sqlite", "--log", "l", "--to", "x", "--at", "yesterday"],
    ],
)
def test_a_wrong_value_is_a_wrong_call(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_every_command_with_brokers_names_them_alike(path: tuple[str, ...], command: Any) -> None:
    for option in command.params:
        if option.name == "bootstrap":
            assert {"-b", "--bootstrap", "--bootstrap-server"} <= set(option.opts)
            assert option.envvar == "OTTLA_BOOTSTRAP"
        if option.name in ("wal", "servers"):
            assert "--wal" in option.opts
            assert set(option.envvar) == {"OTTLA_WAL", "OTTLA_WAL_SERVERS"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host", ("host", 9092)),
        ("host:1", ("host", 1)),
        ("host_name-1.example:65535", ("host_name-1.example", 65535)),
        ("[::1]:5", ("::1", 5)),
        ("[fe80::1%eth0]", ("fe80::1%eth0", 9092)),
        ("::1", ("::1", 9092)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert split_address(text, 9092) == expected


@pytest.mark.parametrize("text", [*BAD_SERVERS[:6], "", "[::1]x:1", "[host]:1", "host:٣"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_address(text, 9092)


def test_version_as_an_option(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for option in ("--version", "-V"):
        assert main([option]) == 0
        assert capsys.readouterr().out.startswith("ottla ")

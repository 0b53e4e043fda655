"""One environment variable names the append streams for every command; its old name still works."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from ottla.cli.wal import commands as wal
from ottla.cli.wal.options import DEFAULT_WAL, WalServers

app = typer.Typer()


@app.command("database")
def database(servers: WalServers = DEFAULT_WAL) -> None:
    typer.echo(f"servers={servers}")


@app.command("log")
def log(servers: wal.Servers = DEFAULT_WAL) -> None:
    typer.echo(f"servers={servers}")


@pytest.mark.parametrize("command", ["database", "log"])
def test_the_variable_and_its_old_name(command: str) -> None:
    def run(*words: str, **variables: str) -> tuple[str, str]:
        both: dict[str, str | None] = {"OTTLA_WAL": None, "OTTLA_WAL_SERVERS": None, **variables}
        done = CliRunner().invoke(app, [command, *words], env=both)
        assert done.exit_code == 0, done.output
        return done.stdout.splitlines()[-1], done.stderr

    assert run() == (f"servers={DEFAULT_WAL}", "")
    assert run(OTTLA_WAL_SERVERS="new:1") == ("servers=new:1", "")
    assert run(OTTLA_WAL_SERVERS="new:1", OTTLA_WAL="old:1") == ("servers=new:1", "")
    assert run("--wal", "given:1", OTTLA_WAL="old:1") == ("servers=given:1", "")
    said, note = run(OTTLA_WAL="old:1")
    assert said == "servers=old:1"
    assert "OTTLA_WAL was renamed to OTTLA_WAL_SERVERS" in note

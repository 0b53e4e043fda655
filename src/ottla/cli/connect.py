"""`ottla connect`: databases on the log."""

from __future__ import annotations

import typer

from ottla.cli import connect_postgres_wal

commands = typer.Typer(help="Keeps databases on the log.", no_args_is_help=True)
commands.command("postgres-wal")(connect_postgres_wal.postgres_wal)

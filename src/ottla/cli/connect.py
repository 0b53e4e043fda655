"""`ottla connect`: databases on the log."""

from __future__ import annotations

import typer

from ottla.cli import connect_sqlite

commands = typer.Typer(help="Keeps databases on the log.", no_args_is_help=True)
commands.callback()(lambda: None)  # a group, also while it has one command
commands.command("sqlite")(connect_sqlite.sqlite)

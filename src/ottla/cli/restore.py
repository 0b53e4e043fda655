"""`ottla restore`: databases from the log."""

from __future__ import annotations

import typer

from ottla.cli import restore_sqlite

commands = typer.Typer(help="Restores databases from the log.", no_args_is_help=True)
commands.callback()(lambda: None)  # a group, also while it has one command
commands.command("sqlite")(restore_sqlite.sqlite)

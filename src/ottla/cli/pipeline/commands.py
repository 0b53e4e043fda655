"""`ottla pipeline`: Spark jobs that turn topics into archives and tables."""

from __future__ import annotations

import typer

from ottla.cli.pipeline import archive as pipeline_archive
from ottla.cli.pipeline import prepare as pipeline_prepare
from ottla.cli.pipeline import run as pipeline_run
from ottla.cli.pipeline import sessions as pipeline_sessions
from ottla.cli.pipeline import tables as pipeline_tables

commands = typer.Typer(
    help="Archives topics, builds tables from them and restores tables, on Spark.", no_args_is_help=True
)
commands.add_typer(pipeline_archive.commands, name="archive")
commands.command("materialize")(pipeline_tables.materialize)
commands.command("restore")(pipeline_tables.restore)
commands.command("sessions")(pipeline_sessions.sessions)
commands.command("run")(pipeline_run.run)
commands.command("prepare")(pipeline_prepare.prepare)

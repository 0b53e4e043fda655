"""`ottla connect`: change data capture from databases, and sinks that copy topics elsewhere."""

from __future__ import annotations

import typer

from ottla.cli.connect import control as connect_control
from ottla.cli.connect import files as connect_files
from ottla.cli.connect import postgres as connect_postgres
from ottla.cli.connect import postgres_wal as connect_postgres_wal
from ottla.cli.connect import sqlite as connect_sqlite

commands = typer.Typer(
    help="Captures database changes in topics, and copies topics to databases and files.", no_args_is_help=True
)
commands.command("postgres-cdc")(connect_postgres.postgres_cdc)
commands.command("postgres-sink")(connect_postgres.postgres_sink)
commands.command("postgres-wal")(connect_postgres_wal.postgres_wal)
commands.command("sqlite")(connect_sqlite.sqlite)
commands.command("file-sink")(connect_files.file_sink)
commands.command("run")(connect_control.run_file)
commands.command("status")(connect_control.status)
commands.command("reset")(connect_control.reset)

"""`ottla connect sqlite`: ships the transactions of a database to a log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.connect.connector_runs import run_connector
from ottla.cli.connect.sqlite_options import LogName, seconds_of
from ottla.cli.output import DEFAULT_BOOTSTRAP, Bootstrap
from ottla.cli.wal.options import DEFAULT_WAL, NewLogDurability, NewLogReplicas, WalServers


def sqlite(
    database: Annotated[Path, typer.Argument(metavar="DB", help="The database file.", show_default=False)],
    log: LogName,
    wal: WalServers = DEFAULT_WAL,
    name: Annotated[
        str | None,
        typer.Option(help="The name of the connector in `ottla connect status`; by default the name of the log."),
    ] = None,
    replicas: NewLogReplicas = None,
    durability: NewLogDurability = None,
    snapshot_every: Annotated[
        str, typer.Option(help="Write a snapshot to the log this often if the database has changed.")
    ] = "1d",
    keep: Annotated[
        str, typer.Option(help="Keep the history of this period for restores; 'all' keeps it forever.")
    ] = "7d",
    checkpoint_mb: Annotated[int, typer.Option(min=1, help="Restart the WAL when it reaches this size in MiB.")] = 4,
    wal_mb_max: Annotated[
        int, typer.Option(min=1, help="Let the WAL grow to at most this size in MiB while the log is unavailable.")
    ] = 4096,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Ships each committed transaction of an SQLite database to a log, until it is stopped."""
    seconds_of(snapshot_every, "--snapshot-every")
    if keep != "all":
        seconds_of(keep, "--keep")
    settings = {
        "database": str(database.absolute()),
        "log": log,
        "wal": wal,
        "replicas": replicas,
        "durability": durability,
        "snapshot_every": snapshot_every,
        "keep": keep,
        "checkpoint_mb": checkpoint_mb,
        "wal_mb_max": wal_mb_max,
    }
    run_connector(name or log, "sqlite", bootstrap, settings)

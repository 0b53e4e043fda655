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
    database: Annotated[Path, typer.Argument(metavar="DB", help="The file of the database.", show_default=False)],
    log: LogName,
    wal: WalServers = DEFAULT_WAL,
    name: Annotated[
        str | None, typer.Option(help="Of the connector, as `ottla connect status` shows it. Without it: the log's.")
    ] = None,
    replicas: NewLogReplicas = None,
    durability: NewLogDurability = None,
    snapshot_every: Annotated[
        str, typer.Option(help="How often a snapshot goes into the log, if there is news.")
    ] = "1d",
    keep: Annotated[
        str, typer.Option(help="Any moment of this time can be restored; 'all' never gives up any.")
    ] = "7d",
    checkpoint_mb: Annotated[int, typer.Option(min=1, help="How large the WAL gets before it is begun anew.")] = 4,
    wal_mb_max: Annotated[int, typer.Option(min=1, help="How large it gets at most, if the log is not there.")] = 4096,
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

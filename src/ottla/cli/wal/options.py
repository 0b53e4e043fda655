"""Options of the commands that use a log, and their error messages."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Annotated, Any, Literal, TypeVar

import typer

from ottla.cli.address_options import check_wal_servers
from ottla.cli.failures import CommandError
from ottla.cli.number_options import INT16_MAX
from ottla.cli.output import run, say

T = TypeVar("T")

DEFAULT_WAL = "127.0.0.1:9192"
DEFAULT_LOG = "postgres-wal"

WAL_VARIABLE = "OTTLA_WAL_SERVERS"
OLD_WAL_VARIABLE = "OTTLA_WAL"


def note_old_variable(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    """Prints a note if the servers come from the old name of the variable."""
    source = context.get_parameter_source(parameter.name or "")
    is_old = not os.environ.get(WAL_VARIABLE) and bool(os.environ.get(OLD_WAL_VARIABLE))
    if is_old and source is not None and source.name == "ENVIRONMENT":
        say(f"note: the variable {OLD_WAL_VARIABLE} was renamed to {WAL_VARIABLE}; the old name will be removed")
    return value


def check_servers(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    """Validates append stream addresses."""
    check_wal_servers(value)
    return note_old_variable(context, parameter, value)


WalServers = Annotated[
    str,
    typer.Option(
        "--wal",
        "--wal-servers",
        envvar=[WAL_VARIABLE, OLD_WAL_VARIABLE],
        metavar="HOST:PORT,...",
        callback=check_servers,
        help="Connect to the brokers' append streams at these addresses (`ottla up --wal-port`).",
    ),
]
NewLogReplicas = Annotated[
    int | None,
    typer.Option(min=1, max=INT16_MAX, help="The number of replicas of a new log; by default that of the brokers."),
]
NewLogDurability = Annotated[
    Literal["disk", "cache", "memory"] | None, typer.Option(help="The durability of a new log.")
]
LogName = Annotated[str, typer.Option("--log", help="The name of the log that holds the database's WAL.")]
Dsn = Annotated[
    str,
    typer.Argument(
        help="The server: postgresql://user@host:5432/ ; missing parts default as in psql (PGHOST, PGUSER, ~/.pgpass).",
    ),
]
Archive = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="DIRECTORY|URL",
        help="The archive, written by `ottla pipeline archive`, of records that retention has removed from the log.",
        show_default=False,
    ),
]
WithoutLog = Annotated[
    bool,
    typer.Option(
        "--without-log",
        help="Restore from --archive alone after the loss of the brokers, without the later records of the log.",
    ),
]
Store = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="OTTLA_BACKUPS",
        help="The place of the backups: a directory, or a URL such as s3://bucket/path.",
    ),
]


def absolute_place(place: str | None) -> str | None:
    """Returns an absolute path, for a program that runs in another directory."""
    return place if place is None or "://" in place else os.path.abspath(place)


def check_store(store: str) -> None:
    """Raises FailedError if there is no store, because opening one would create its directory."""
    if "://" not in store and not os.path.isdir(store):
        raise CommandError(f"the directory {store} (--store) does not exist, so there are no backups")


def check_without_log(without_log: bool, archive: str | None) -> None:
    """Raises BadParameter if --without-log is given without an archive."""
    if without_log and archive is None:
        raise typer.BadParameter("--without-log restores from an archive; choose it with --archive")


def run_postgres(work: Coroutine[Any, Any, T]) -> T:
    """Runs a command's coroutine and turns expected failures into FailedError."""
    try:
        import ottla.wal
        from ottla.connect.postgres_wal import failures, server  # noqa: F401 # to say what is not installed
    except ImportError as missing:
        work.close()
        raise CommandError(f"{missing}. Run: pip install 'ottla[postgres,wal]'") from None
    try:
        return run(work)
    except (failures.PostgresError, ottla.wal.WalError) as failure:
        raise CommandError(str(failure)) from failure


async def until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` until it ends by itself or SIGTERM or Ctrl-C stops it, which counts as success."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise

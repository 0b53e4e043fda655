"""Options of commands that use a log, and their failures as sentences."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

import typer

from ottla.cli.failures import FailedError
from ottla.cli.output import run

T = TypeVar("T")

DEFAULT_WAL = "127.0.0.1:9192"
DEFAULT_LOG = "postgres-wal"

WalServers = Annotated[
    str, typer.Option("--wal", envvar="OTTLA_WAL", help="The brokers' append streams: host:port,...")
]
LogName = Annotated[str, typer.Option("--log", help="The name of the log that holds the database's WAL.")]
Dsn = Annotated[
    str,
    typer.Argument(
        help="The server: postgresql://user@host:5432/ ; what is left out is as for psql (PGHOST, PGUSER, ~/.pgpass).",
    ),
]
Archive = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="DIRECTORY|URL",
        help="Where `ottla pipeline archive` has put what retention has removed from the log.",
        show_default=False,
    ),
]
WithoutLog = Annotated[
    bool,
    typer.Option(
        "--without-log",
        help="The brokers are lost: restore from --archive alone, and do without what the log had after it.",
    ),
]
Store = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="OTTLA_BACKUPS",
        help="Where backups are: a directory, or an address such as s3://bucket/path.",
    ),
]


def absolute_place(place: str | None) -> str | None:
    """For a program that runs in another directory."""
    return place if place is None or "://" in place else os.path.abspath(place)


def check_without_log(without_log: bool, archive: str | None) -> None:
    if without_log and archive is None:
        raise typer.BadParameter("--without-log restores from an archive: name it with --archive")


def run_postgres(work: Coroutine[Any, Any, T]) -> T:
    """What goes wrong is a sentence, with exit code 1; the end of the process by a signal is a clean one."""
    try:
        import ottla.wal
        from ottla.connect.postgres_wal import failures, server  # noqa: F401 # to say what is not installed
    except ImportError as missing:
        work.close()
        raise FailedError(f"{missing}. Type: pip install 'ottla[postgres,wal]'") from None
    try:
        return run(work)
    except (failures.PostgresError, ottla.wal.WalError) as failure:
        raise FailedError(str(failure)) from failure


async def until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Runs it until it ends by itself or the process is told to end (SIGTERM, Ctrl-C)."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise

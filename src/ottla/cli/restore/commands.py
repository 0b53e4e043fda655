"""`ottla restore`: restores databases from backups and the log."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failures import CommandError
from ottla.cli.number_options import UINT32_MAX
from ottla.cli.output import say
from ottla.cli.restore import sqlite as restore_sqlite
from ottla.cli.wal.options import (
    DEFAULT_LOG,
    DEFAULT_WAL,
    Archive,
    LogName,
    Store,
    WalServers,
    WithoutLog,
    absolute_place,
    check_store,
    check_without_log,
    run_postgres,
)
from ottla.protocol.model.addresses import PORT_MAX

if TYPE_CHECKING:
    from ottla.connect.postgres_wal.restore import RestoredCluster, RestoreRequest
    from ottla.connect.postgres_wal.server_user import ServerUser

commands = typer.Typer(help="Restores databases from backups and the log.", no_args_is_help=True)
commands.command("sqlite")(restore_sqlite.sqlite)


@commands.command("postgres")
def postgres(
    store: Store,
    to: Annotated[Path, typer.Option("--to", help="The data directory to create, which must be empty or not exist.")],
    at: Annotated[
        str | None,
        typer.Option(
            help="Recover to a time, an LSN (16/B374D848) or a transaction id; by default the end of the log."
        ),
    ] = None,
    before: Annotated[
        bool, typer.Option("--before", help="Stop just before the point of --at instead of after it.")
    ] = False,
    timeline: Annotated[
        int | None,
        typer.Option(min=1, max=UINT32_MAX, help="Follow this timeline; by default the last one in the log."),
    ] = None,
    backup: Annotated[
        str | None, typer.Option(help="Restore from this backup; by default the newest one that fits.")
    ] = None,
    start: Annotated[
        bool, typer.Option("--start", help="Start the restored server, and wait until it has recovered.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=PORT_MAX, help="The port of the restored server, with --start.")
    ] = None,
    server_user: Annotated[
        str | None,
        typer.Option(
            help="The user that runs PostgreSQL and owns the files; by default you, or the user postgres if you "
            "are root.",
            show_default=False,
        ),
    ] = None,
    spool_mb: Annotated[
        int,
        typer.Option(
            min=1, help="Space in pg_wal, in MiB, for WAL that is read ahead during recovery; at least 2 segments."
        ),
    ] = 256,
    wal: WalServers = DEFAULT_WAL,
    log: LogName = DEFAULT_LOG,
    archive: Archive = None,
    without_log: WithoutLog = False,
) -> None:
    """Creates a data directory that recovers to a chosen point in time when started, and prints how to start it."""
    wanted = _wanted(at, before, timeline, backup)
    check_without_log(without_log, archive)
    check_store(store)
    server = [sys.executable, "-m", "ottla.connect.postgres_wal.restore_server", "--wal", wal, "--log", log]
    server += ["--spool-mb", str(spool_mb)]
    archive = absolute_place(archive)
    if archive is not None:
        server += ["--archive", archive, *(["--without-log"] if without_log else [])]

    async def work() -> tuple[RestoredCluster, ServerUser | None]:
        from ottla.connect.postgres_wal.backup_store import BackupStore
        from ottla.connect.postgres_wal.log_location import LogLocation
        from ottla.connect.postgres_wal.restore import restore
        from ottla.connect.postgres_wal.server_user import find_server_user

        user = find_server_user(server_user)
        async with LogLocation(wal, log).open_to_read(archive, say, without_log=without_log) as opened:
            return await restore(opened, BackupStore(store), to.absolute(), wanted, server, user), user

    restored, user = run_postgres(work())
    _tell(restored, to.absolute())
    _start(restored, to.absolute(), at, start=start, port=port, user=user)


def _wanted(at: str | None, before: bool, timeline: int | None, backup: str | None) -> RestoreRequest:
    from ottla.connect.postgres_wal.positions import TimelineId
    from ottla.connect.postgres_wal.restore import RestoreRequest
    from ottla.connect.postgres_wal.targets import parse_target

    if before and at is None:
        raise typer.BadParameter("--before needs --at")
    try:
        target = None if at is None else parse_target(at)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None
    line = None if timeline is None else TimelineId(timeline)
    return RestoreRequest(target=target, inclusive=not before, timeline=line, backup=backup)


def _tell(restored: RestoredCluster, directory: Path) -> None:
    print(f"restored {directory} from the backup {restored.backup.name}, timeline {restored.timeline}")
    for note in restored.notes:
        print(f"note: {note}")
    for oid, place in restored.tablespaces.items():
        print(f"tablespace {oid} is in {place}")


def _start(
    restored: RestoredCluster,
    directory: Path,
    at: str | None,
    *,
    start: bool,
    port: int | None,
    user: ServerUser | None,
) -> None:
    from ottla.connect.postgres_wal.positions import lsn_text
    from ottla.connect.postgres_wal.server_start import find_pg_ctl, start_and_wait, start_command

    version = restored.backup.server_version
    program = find_pg_ctl(version)
    command = start_command(program, directory, port)
    if not start:
        words = (
            shlex.join(command)
            if user is None
            else f"su -s /bin/sh {shlex.quote(user.name)} -c {shlex.quote(shlex.join(command))}"
        )
        print(f"to start it with PostgreSQL {version}, as a user other than root, run:\n\n    {words}\n")
        return
    if program is None:
        raise CommandError(
            f"pg_ctl of PostgreSQL {version} was not found, and another version cannot read this directory. "
            f"Install it (apt-get install postgresql-{version}), or put it on the PATH; then run: "
            f"{shlex.join(command)}"
        )
    say("starting the server, which replays the log")
    ended = start_and_wait(command, directory, user)
    if ended is not None:
        raise CommandError(ended)
    print(f"the server is running, recovered up to {at or 'the end of the log, ' + lsn_text(restored.log_end)}")

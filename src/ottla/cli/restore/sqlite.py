"""`ottla restore sqlite`: restores a database to any point in time from its log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ottla.cli.connect.sqlite_options import LogName, failures_in_words
from ottla.cli.failures import CommandError
from ottla.cli.output import count_text, say
from ottla.cli.time_options import since_ms
from ottla.cli.wal.options import DEFAULT_WAL, Archive, WalServers, WithoutLog, check_without_log

if TYPE_CHECKING:
    from ottla.connect.archived_log import SyncArchivedLog, SyncArchiveOnlyLog
    from ottla.connect.log_ports import SyncReadableLog
    from ottla.connect.sqlite.restore import RestorePoint

    Archived = TypeVar("Archived", SyncArchivedLog, SyncArchiveOnlyLog)


def sqlite(
    log: LogName,
    to: Annotated[Path, typer.Option("--to", help="The file to create.", show_default=False)],
    at: Annotated[
        str | None,
        typer.Option(
            help="Restore to a transaction number, a time, or how long ago (10m); by default the end of the log."
        ),
    ] = None,
    wal: WalServers = DEFAULT_WAL,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    check: Annotated[
        bool, typer.Option(help="Run PRAGMA integrity_check before the file is renamed into place.")
    ] = True,
    archive: Archive = None,
    without_log: WithoutLog = False,
) -> None:
    """Creates the file of an SQLite database as it was at a chosen point in time."""
    moment = _moment(at)
    check_without_log(without_log, archive)
    with failures_in_words():
        from ottla.connect.sqlite.restore import restore

        with _opened(wal, log, archive, without_log=without_log) as readable:
            done = restore(readable, to, moment, force=force, check=check)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(done.time_ms / 1000))
    print(
        f"{to}: restored to the state after transaction {done.transaction}, {when}; "
        f"{count_text(done.database_pages, 'page')}, a snapshot and {count_text(done.replayed, 'transaction')}"
    )


@contextmanager
def _opened(wal: str, log: str, archive: str | None, *, without_log: bool) -> Iterator[SyncReadableLog]:
    from ottla.wal import LogNotFoundError, SyncLog

    if without_log and archive is not None:
        from ottla.connect.archived_log import SyncArchiveOnlyLog

        yield _telling(SyncArchiveOnlyLog(archive, log))
        return
    try:
        handle = SyncLog.open(wal, log)
    except LogNotFoundError as missing:
        raise CommandError(f'there is no log "{log}" on {wal}; `ottla topics list` lists the logs') from missing
    with handle:
        if archive is None:
            yield handle
            return
        from ottla.connect.archived_log import SyncArchivedLog

        yield _telling(SyncArchivedLog(handle, archive, log))


def _telling(opened: Archived) -> Archived:
    if opened.part.note is not None:
        say(f"note: {opened.part.note}")
    return opened


def _moment(at: str | None) -> RestorePoint:
    with failures_in_words():
        from ottla.connect.sqlite.restore import RestorePoint
    if at is None:
        return RestorePoint()
    if at.isdigit():
        return RestorePoint(transaction=int(at))
    try:
        return RestorePoint(time_ms=since_ms(at, time.time_ns() // 1_000_000))
    except ValueError as wrong:
        raise typer.BadParameter(f"{wrong}, nor a transaction number") from None

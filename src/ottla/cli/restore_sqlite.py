"""`ottla restore sqlite`: a database as it was at any moment, from its log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failures import FailedError
from ottla.cli.output import count_text, say
from ottla.cli.since import since_ms
from ottla.cli.sqlite_options import LogName, WalServers, failures_in_words
from ottla.cli.wal_options import DEFAULT_WAL, Archive

if TYPE_CHECKING:
    from ottla.connect.sqlite.log_port import ReadableLog
    from ottla.connect.sqlite.restore import Moment
    from ottla.wal import SyncLog


def sqlite(
    log: LogName,
    to: Annotated[Path, typer.Option("--to", help="The file to make.", show_default=False)],
    at: Annotated[
        str | None,
        typer.Option(
            help="The moment: the number of a transaction, a time, or how long ago (10m). Without it: the end."
        ),
    ] = None,
    wal: WalServers = DEFAULT_WAL,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    check: Annotated[bool, typer.Option(help="Run PRAGMA integrity_check before the file gets its name.")] = True,
    archive: Archive = None,
) -> None:
    """Makes the file of an SQLite database as it was at a chosen moment."""
    moment = _moment(at)
    with failures_in_words():
        from ottla.connect.sqlite.restore import restore
        from ottla.wal import LogNotFoundError, SyncLog

        try:
            handle = SyncLog.open(wal, log)
        except LogNotFoundError as missing:
            raise FailedError(f'there is no log "{log}" on {wal}: see `ottla topics list`') from missing
        with handle:
            done = restore(_with_archive(handle, archive, log), to, moment, force=force, check=check)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(done.time_ms / 1000))
    print(
        f"{to}: as after transaction {done.transaction}, {when}; {count_text(done.database_pages, 'page')}, "
        f"a snapshot and {count_text(done.replayed, 'transaction')}"
    )


def _with_archive(handle: SyncLog, archive: str | None, log: str) -> ReadableLog:
    if archive is None:
        return handle
    from ottla.connect.archived_log import SyncArchivedLog

    both = SyncArchivedLog(handle, archive, log)
    if both.part.note is not None:
        say(f"note: {both.part.note}")
    return both


def _moment(at: str | None) -> Moment:
    with failures_in_words():
        from ottla.connect.sqlite.restore import Moment
    if at is None:
        return Moment()
    if at.isdigit():
        return Moment(transaction=int(at))
    try:
        return Moment(time_ms=since_ms(at, time.time_ns() // 1_000_000))
    except ValueError as wrong:
        raise typer.BadParameter(f"{wrong}, nor the number of a transaction") from None

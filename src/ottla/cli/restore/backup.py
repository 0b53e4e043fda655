"""`ottla backup`: base backups of databases whose WAL is stored in a log."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.output import AsJson, count_text, print_json, print_table, say, size_text
from ottla.cli.wal.options import (
    DEFAULT_LOG,
    DEFAULT_WAL,
    Archive,
    Dsn,
    LogName,
    Store,
    WalServers,
    check_store,
    run_postgres,
)

if TYPE_CHECKING:
    from ottla.connect.postgres_wal.backup_store import Backup

commands = typer.Typer(help="Takes, lists and checks backups of databases.", no_args_is_help=True)


@commands.command("postgres")
def postgres(
    store: Store,
    dsn: Dsn = "",
    wal: WalServers = DEFAULT_WAL,
    log: LogName = DEFAULT_LOG,
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="Keep this many of the newest backups, and trim the log before the oldest of them."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Takes a base backup. Together with the log, it can be restored to any later point in time."""

    async def work() -> Backup:
        from ottla.connect.postgres_wal.backup import keep_newest, take_backup
        from ottla.connect.postgres_wal.backup_store import BackupStore
        from ottla.connect.postgres_wal.log_location import LogLocation

        backups = await asyncio.to_thread(BackupStore, store)
        async with LogLocation(wal, log).open() as opened:
            taken = await take_backup(dsn, opened, backups, say)
            if keep is not None:
                kept = await keep_newest(opened, backups, keep)
                for old in kept.removed:
                    say(f"removed the backup {old.name}")
                if kept.trimmed_before is not None:
                    say(f"the log now starts at offset {kept.trimmed_before}")
        return taken

    taken = run_postgres(work())
    if as_json:
        print_json(asdict(taken))
    else:
        print(f"backup {taken.name}: {size_text(taken.size_bytes)} in {store}")


@commands.command("list")
def list_backups(store: Store, as_json: AsJson = False) -> None:
    """Lists backups, oldest first."""
    check_store(store)

    async def work() -> list[Backup]:
        from ottla.connect.postgres_wal.backup_store import BackupStore

        return BackupStore(store).backups()

    found = run_postgres(work())
    if as_json:
        print_json([asdict(each) for each in found])
        return
    from ottla.connect.postgres_wal.positions import lsn_text, utc

    rows = [
        (
            each.name,
            f"{utc(each.ended_unix_us):%Y-%m-%d %H:%M:%S}",
            each.timeline,
            lsn_text(each.start),
            lsn_text(each.end),
            each.server_version,
            each.system_id,
            size_text(each.size_bytes),
        )
        for each in found
    ]
    headings = ["backup", "complete (UTC)", "timeline", "from", "to", "PostgreSQL", "database", "size"]
    print_table(headings, rows, right=["size"])


@commands.command("check")
def check(store: Store, wal: WalServers = DEFAULT_WAL, log: LogName = DEFAULT_LOG, archive: Archive = None) -> None:
    """Reads every backup, and the log from the oldest backup on, and checks that no byte and no WAL is missing."""
    check_store(store)

    async def work() -> list[str]:
        from ottla.connect.postgres_wal.backup_check import check_backups
        from ottla.connect.postgres_wal.backup_store import BackupStore
        from ottla.connect.postgres_wal.log_location import LogLocation

        async with LogLocation(wal, log).open_to_read(archive, say) as opened:
            return await check_backups(opened, BackupStore(store), say)

    findings = run_postgres(work())
    for finding in findings:
        print(finding)
    if findings:
        say(count_text(len(findings), "finding"))
        raise typer.Exit(1)
    print("all backups can be restored")

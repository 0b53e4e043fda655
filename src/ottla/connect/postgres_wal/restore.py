"""`ottla restore postgres`: restores a data directory that, once started, replays the log up to the requested point."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ottla.connect.log_ports import ReadableLog
from ottla.connect.postgres_wal.backup_store import Backup, BackupStore
from ottla.connect.postgres_wal.data_directory import check_empty, lay_down, sync_tree
from ottla.connect.postgres_wal.failures import RefusedError
from ottla.connect.postgres_wal.log_search import first_entry, last_entry, offset_of
from ottla.connect.postgres_wal.positions import Lsn, TimelineId, lsn_text, segment_start
from ottla.connect.postgres_wal.recovery_files import write_recovery
from ottla.connect.postgres_wal.segments import history_in_log
from ottla.connect.postgres_wal.server_user import ServerUser, check_server_user, give_to
from ottla.connect.postgres_wal.targets import Target, choose_backup, recovery_settings
from ottla.connect.postgres_wal.timelines import History


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What to restore. By default, the newest backup and all WAL in the log."""

    target: Target | None = None
    inclusive: bool = True
    timeline: TimelineId | None = None
    backup: str | None = None


@dataclass(frozen=True, slots=True)
class RestoredCluster:
    """The result of a restore."""

    backup: Backup
    timeline: TimelineId
    log_end: Lsn
    tablespaces: dict[str, Path]
    notes: list[str]


async def restore(
    log: ReadableLog,
    store: BackupStore,
    directory: Path,
    wanted: RestoreRequest,
    server: Sequence[str],
    user: ServerUser | None = None,
) -> RestoredCluster:
    """Restores the data directory, without starting anything. Raises PostgresError. A rejected request leaves nothing
    behind.

    `server` is the command that starts the restore server, without the options that depend on the backup. `user` will
    run PostgreSQL and owns the files; None means the caller.
    """
    last = await last_entry(log)
    if last is None:
        raise RefusedError("the log is empty; choose the log with the database's WAL (--log)")
    timeline = last.entry.timeline if wanted.timeline is None else wanted.timeline
    history = await history_in_log(log, timeline)
    if history is None:
        raise RefusedError(f"the log has no WAL of timeline {timeline}; its last timeline is {last.entry.timeline}")
    backups = [each for each in store.backups() if each.system_id == last.entry.system_id]
    if not backups:
        raise RefusedError(f"there is no backup of this database in {store.place}; `ottla backup postgres` takes one")
    if wanted.backup is not None:
        backups = [each for each in backups if each.name == wanted.backup]
        if not backups:
            raise RefusedError(f"there is no backup {wanted.backup!r} in {store.place}; `ottla backup list` shows them")
    backup = choose_backup(backups, wanted.target, history)
    await _check_beginning(log, backup, history)
    command = [*server, "--system-id", str(backup.system_id), "--segment-bytes", str(backup.segment_bytes)]
    if wanted.target is not None:
        command.append("--up-to-gap")
    check_empty(backup, directory)
    await asyncio.to_thread(check_server_user, user, command, directory)
    tablespaces = await asyncio.to_thread(lay_down, store, backup, directory)
    notes = write_recovery(
        directory,
        backup,
        server=command,
        timeline=timeline,
        target=recovery_settings(wanted.target, inclusive=wanted.inclusive),
        takes_over=wanted.target is None,
    )
    for place in (*tablespaces.values(), directory):
        if user is not None:
            await asyncio.to_thread(give_to, user, place)
        await asyncio.to_thread(sync_tree, place)
    return RestoredCluster(backup, timeline, last.entry.end, tablespaces, notes)


async def _check_beginning(log: ReadableLog, backup: Backup, history: History) -> None:
    """Checks that the log goes back to the backup's start, before hours are spent on unpacking it. Raises
    RefusedError."""
    begins = await first_entry(log)
    assert begins is not None, "a log with a last entry has a first one"
    if begins.entry.system_id != backup.system_id:
        raise RefusedError(
            f"the log starts with the WAL of another database (system id {begins.entry.system_id}, the backup "
            f"{backup.name} has {backup.system_id}); is --archive the archive of this log?"
        )
    first = segment_start(backup.start, backup.segment_bytes)
    timeline, low, _ = next(history.pieces(first, Lsn(backup.start + 1)))
    if await offset_of(log, timeline, low) is not None:
        return
    raise RefusedError(
        f"the backup {backup.name} needs WAL from {lsn_text(low)} of timeline {timeline} on, but the log "
        f"starts at {lsn_text(begins.entry.start)} of timeline {begins.entry.timeline} (offset "
        f"{begins.offset}). If the earlier records were archived (ottla pipeline archive), choose the archive "
        "with --archive DIRECTORY; if not, use a newer backup, as `ottla backup list` shows"
    )

"""`ottla backup check`: checks that the backups can be restored. Reads all of the backups and the WAL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla.connect.log_ports import ReadableLog
from ottla.connect.postgres_wal.backup import check_wal
from ottla.connect.postgres_wal.backup_store import Backup, BackupStore, DamagedBackupError
from ottla.connect.postgres_wal.entries import Entry
from ottla.connect.postgres_wal.log_search import last_entry
from ottla.connect.postgres_wal.pieces import GapError
from ottla.connect.postgres_wal.positions import Lsn, lsn_text, segment_start
from ottla.connect.postgres_wal.segments import history_in_log


async def check_backups(log: ReadableLog, store: BackupStore, news: Callable[[str], None]) -> list[str]:
    """Returns one sentence per problem; an empty list if there are none."""
    last = await last_entry(log)
    backups = await asyncio.to_thread(store.backups)
    if last is None:
        return ["the log is empty"]
    if not backups:
        return [f"there is no backup in {store.place}"]
    findings: list[str] = []
    for backup in backups:
        if backup.system_id != last.entry.system_id:
            findings.append(f"the backup {backup.name} and the log belong to different databases")
            continue
        news(f"checking the backup {backup.name}")
        findings += await asyncio.to_thread(_check_files, store, backup)
        findings += await _check_wal(log, backup, last.entry)
    return findings


def _check_files(store: BackupStore, backup: Backup) -> list[str]:
    findings = []
    for file in backup.files:
        try:
            for _ in store.read_file(backup, file):
                pass
        except DamagedBackupError as damage:
            findings.append(str(damage))
    return findings


async def _check_wal(log: ReadableLog, backup: Backup, last: Entry) -> list[str]:
    """Checks the WAL that the backup itself needs, and the WAL from there to the end of the log.

    The latter is checked only if the backup belongs to the history of the log's last timeline.
    """
    first = segment_start(backup.start, backup.segment_bytes)
    try:
        await check_wal(log, backup.timeline, first, backup.end)
        history = await history_in_log(log, last.timeline)
        stretch = None if history is None else history.stretch_of(backup.timeline)
        if stretch is not None and (stretch.end is None or backup.end <= stretch.end) and last.end > backup.end:
            await check_wal(log, last.timeline, Lsn(first), last.end)
    except GapError as gap:
        return [f"the backup {backup.name} cannot be restored up to {lsn_text(last.end)}: {gap}"]
    return []

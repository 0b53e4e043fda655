"""`ottla backup postgres`: takes base backups and removes old ones.

A backup is published once the log has all WAL that is needed to make it consistent. The kept backups determine what is
trimmed: WAL after the start of the oldest one is never removed.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from ottla.connect.log_ports import ReadableLog, WritableLog
from ottla.connect.postgres_wal.backup_store import Backup, BackupStore, StoredFile
from ottla.connect.postgres_wal.base_backup import BackupStream, BaseBackup, ControlFileWatch
from ottla.connect.postgres_wal.failures import PostgresError, RefusedError
from ottla.connect.postgres_wal.log_search import last_entry, offset_of
from ottla.connect.postgres_wal.pieces import GapError, wal_pieces
from ottla.connect.postgres_wal.positions import Lsn, TimelineId, lsn_text, segment_start
from ottla.connect.postgres_wal.segments import history_in_log
from ottla.connect.postgres_wal.server import Server
from ottla.connect.postgres_wal.slot_bound import parse_size

APPLICATION_NAME = "ottla-backup"
POLL_S = 0.1
# Settings that a restored server must set at least as high as the server that wrote the WAL, and wal_keep_size.
SETTINGS = (
    "wal_keep_size",
    "max_connections",
    "max_worker_processes",
    "max_wal_senders",
    "max_prepared_transactions",
    "max_locks_per_transaction",
)
START_CONNECTOR = "check that `ottla connect postgres-wal` is running with the same --log"


@dataclass(frozen=True, slots=True)
class BackupCleanup:
    """The backups that were removed, and the offset before which the log was trimmed."""

    removed: list[Backup]
    trimmed_before: int | None


async def take_backup(dsn: str, log: ReadableLog, store: BackupStore, news: Callable[[str], None]) -> Backup:
    """Takes and publishes a backup. Raises PostgresError."""
    async with await Server.connect(dsn, application_name=APPLICATION_NAME) as server:
        identity = await server.identify()
        await _check_log(log, identity.system_id)
        segment_bytes = parse_size(await server.setting("wal_segment_size")) or 0
        settings = {name: await server.setting(name) for name in SETTINGS}
        history = (await server.history(identity.timeline)).decode() if identity.timeline > 1 else ""
        now = datetime.datetime.now(datetime.UTC)
        name = f"{now:%Y%m%dT%H%M%S}-{now.microsecond:06d}"
        started_us = time.time_ns() // 1000
        try:
            copied, next_xid, files = await asyncio.to_thread(_copy, server, store, name, news)
            ended_us = await _wait_for_wal(log, copied, segment_bytes, news)
        except BaseException:
            await asyncio.to_thread(store.discard, name)
            raise
        backup = Backup(
            name=name,
            system_id=identity.system_id,
            server_version=server.version,
            timeline=copied.timeline,
            start=copied.start,
            end=copied.end,
            started_unix_us=started_us,
            ended_unix_us=ended_us,
            next_xid=next_xid,
            segment_bytes=segment_bytes,
            settings=settings,
            tablespaces=copied.tablespaces,
            history=history if copied.timeline == identity.timeline else "",
            files=files,
        )
        await asyncio.to_thread(store.publish, backup)
        return backup


async def _check_log(log: ReadableLog, system_id: int) -> None:
    last = await last_entry(log)
    if last is None:
        raise RefusedError(f"the log is empty, and a backup without WAL cannot be restored; {START_CONNECTOR}")
    if last.entry.system_id != system_id:
        raise RefusedError(
            f"the log holds the WAL of another database (system id {last.entry.system_id}, this server has "
            f"{system_id}); choose its own log with --log"
        )


def _copy(
    server: Server, store: BackupStore, name: str, news: Callable[[str], None]
) -> tuple[BaseBackup, int, list[StoredFile]]:
    stream = BackupStream(server)
    copied = stream.open(f"ottla {name}")
    news(f"copying the data directory, from {lsn_text(copied.start)} on timeline {copied.timeline}")
    control, files = ControlFileWatch(), []
    for archive, blocks in stream.archives():
        watched = control.through(blocks) if archive == "base.tar" else blocks
        files.append(store.write_file(name, archive, watched))
    stream.finish(copied)
    return copied, control.next_xid(), files


async def _wait_for_wal(
    log: ReadableLog, copied: BaseBackup, segment_bytes: int, news: Callable[[str], None], patience_s: float = 30.0
) -> int:
    """Waits until the log has all WAL that the backup needs. Returns the time of its end by the server's clock.

    Raises PostgresError.
    """
    reached, deadline_s, told = Lsn(0), time.monotonic() + patience_s, False
    while True:
        last = await last_entry(log)
        if last is not None and (last.entry.timeline, last.entry.end) >= (copied.timeline, copied.end):
            return await check_wal(log, copied.timeline, segment_start(copied.start, segment_bytes), copied.end)
        if last is not None and last.entry.end > reached:
            reached, deadline_s = last.entry.end, time.monotonic() + patience_s
        if time.monotonic() > deadline_s:
            raise RefusedError(
                f"the log ends at {lsn_text(reached)} and receives no WAL, but the backup needs WAL up to "
                f"{lsn_text(copied.end)}; {START_CONNECTOR}. The backup was abandoned"
            )
        if not told:
            news(f"waiting until the log contains the WAL up to {lsn_text(copied.end)}")
            told = True
        await asyncio.sleep(POLL_S)


async def check_wal(log: ReadableLog, timeline: TimelineId, first: Lsn, end: Lsn) -> int:
    """Checks that the log has the WAL from `first` to `end` of a timeline without a gap. Raises GapError.

    Returns the time when the server sent the end of it.
    """
    history = await history_in_log(log, timeline)
    if history is None:
        raise GapError(f"the log has no WAL of timeline {timeline}")
    sent_us = 0
    for part, low, high in history.pieces(first, end):
        reached = low
        async with aclosing(wal_pieces(log, part, low, high)) as found:
            async for piece in found:
                reached, sent_us = piece.end, piece.sent_unix_us
        if reached < high:
            raise GapError(f"the log ends at {lsn_text(reached)} on timeline {part}, before {lsn_text(high)}")
    return sent_us


async def keep_newest(log: WritableLog, store: BackupStore, count: int) -> BackupCleanup:
    """Removes all backups except the newest `count`, and then the WAL that no backup needs any more."""
    if count < 1:
        raise PostgresError("at least one backup must be kept")
    removed = store.backups()[:-count]
    for backup in removed:
        store.remove(backup)
    return BackupCleanup(removed, await trim(log, store))


async def trim(log: WritableLog, store: BackupStore) -> int | None:
    """Trims the WAL before the oldest kept backup. Returns the offset at which the log now begins.

    WAL is kept from the beginning of a segment, because a server reads the first page of every segment that it opens.
    """
    kept = store.backups()
    if not kept:
        return None
    offsets: list[int] = []
    for backup in kept:
        history = await history_in_log(log, backup.timeline)
        if history is None:
            continue  # its WAL is no longer in the log, so there is nothing to keep
        first = segment_start(backup.start, backup.segment_bytes)
        timeline, low, _ = next(history.pieces(first, Lsn(backup.start + 1)))
        offset = await offset_of(log, timeline, low)
        if offset is not None:
            offsets.append(offset)
    if not offsets:
        return None
    before = min(offsets)
    if before > (await log.tail()).start_offset:
        await log.trim(before)
    return before

"""Restores the file of a database: a snapshot from the log, and the transactions after it up to a point in time."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ottla.connect.failures import NeedsHelpError
from ottla.connect.log_ports import SyncReadableLog
from ottla.connect.sqlite.entries import DamagedEntryError, Kind, Part, decode_pages, link
from ottla.connect.sqlite.history import LogItem, last_item, read_part, snapshots
from ottla.connect.sqlite.page_hashes import PageHashes
from ottla.file_sync import sync_directory
from ottla.wal import TrimmedError

ARCHIVED = "If the earlier records were archived (ottla pipeline archive), choose the archive with --archive DIRECTORY"
SIDE_FILES = ("-wal", "-shm", "-journal")


class RestoreError(NeedsHelpError):
    """The request cannot be fulfilled. The message says what is available."""


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """The point to restore; by default, the end of the log."""

    transaction: int | None = None
    time_ms: int | None = None

    def is_before(self, part: Part) -> bool:
        """Returns whether an item comes after this point."""
        if self.transaction is not None:
            return part.transaction > self.transaction
        return self.time_ms is not None and part.time_ms > self.time_ms


@dataclass(frozen=True, slots=True)
class RestoredDatabase:
    """The result of a restore."""

    transaction: int
    time_ms: int
    database_pages: int
    page_bytes: int
    replayed: int
    """The number of transactions replayed after the snapshot."""


def restore(
    log: SyncReadableLog, to: Path, moment: RestorePoint, *, force: bool = False, check: bool = True
) -> RestoredDatabase:
    """Restores a database into a file, which appears atomically. Raises RestoreError."""
    _check_target(to, force)
    last = last_item(log)
    if last is None:
        raise RestoreError("the log is empty or has no complete snapshot yet")
    if moment.transaction is not None and moment.transaction > last.part.transaction:
        raise RestoreError(
            f"there is no transaction {moment.transaction}: the last one in the log is {told(last.part)}"
        )
    offset = _find_snapshot(log, last, moment)
    temporary = to.with_name(f".{to.name}.restoring-{uuid.uuid4().hex[:8]}")
    try:
        restored = _build(log, offset, last, moment, temporary)
        if check:
            check_integrity(temporary)
        _put_in_place(temporary, to)
    except TrimmedError as error:
        raise RestoreError(f"the log was trimmed while it was read ({error}). Run the command again") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
    return restored


def told(part: Part) -> str:
    """Formats a transaction's number and time."""
    moment = datetime.fromtimestamp(part.time_ms / 1000).astimezone()
    return f"{part.transaction} ({moment.isoformat(' ', 'milliseconds')})"


def _find_snapshot(log: SyncReadableLog, last: LogItem, moment: RestorePoint) -> int:
    oldest: Part | None = None
    for offset, part in snapshots(log, last):
        if not moment.is_before(part):
            return offset
        oldest = part
    if oldest is None:
        raise RestoreError(
            f"the log no longer has the snapshot that its transactions follow: retention.ms deleted it. {ARCHIVED}"
        )
    start = log.tail().start_offset
    cut = f". It starts at offset {start}. {ARCHIVED}" if start else ""
    raise RestoreError(
        f"the log does not go back that far: its first snapshot is after transaction {told(oldest)}{cut}"
    )


def _build(log: SyncReadableLog, offset: int, last: LogItem, moment: RestorePoint, path: Path) -> RestoredDatabase:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        hashes, done, replayed = PageHashes(), None, 0
        for entries in _items(log, offset, last.offset + 1, moment):
            done = read_part(entries[-1][0], entries[-1][1])
            replayed += done.kind is Kind.TRANSACTION
            for at, data in entries:
                _apply(file, at, data, done, hashes)
            os.ftruncate(file, done.database_pages * done.page_bytes)
            hashes.resize(done.database_pages)
            if done.state is not None and done.state != hashes.total:
                raise RestoreError(
                    f"after transaction {done.transaction} the pages differ from those of the database: the "
                    f"log is damaged before offset {entries[-1][0]}. Restore an earlier state with --at"
                )
        assert done is not None
        os.fsync(file)
        return RestoredDatabase(done.transaction, done.time_ms, done.database_pages, done.page_bytes, replayed)
    finally:
        os.close(file)


def _apply(file: int, offset: int, entry: bytes, item: Part, hashes: PageHashes) -> None:
    try:
        for number, page in decode_pages(entry):
            if number > item.database_pages:
                raise DamagedEntryError(f"it has page {number} of {item.database_pages}")
            os.pwrite(file, page, (number - 1) * item.page_bytes)
            hashes.put(number, page)
    except DamagedEntryError as damage:
        raise RestoreError(f"the entry at offset {offset} of the log cannot be used: {damage}") from damage


def _items(log: SyncReadableLog, first: int, until: int, moment: RestorePoint) -> Iterator[list[tuple[int, bytes]]]:
    """Yields the entries of each complete item from the snapshot at `first` up to `moment`. Raises RestoreError at a
    gap.

    A gap right after a time is an error too, because the missing transactions may have been before that time.
    """
    held: list[tuple[int, bytes]] = []
    before_held, held_link = b"", b""
    """The hashes of the last complete item and of the last held part."""
    is_first = True
    last_transaction = None
    for chunk in log.read_chunks(first, until):
        for entry in chunk:
            part = read_part(entry.offset, entry.data)
            if part.number == 0:
                if moment.transaction is not None and last_transaction == moment.transaction:
                    return
                held = []  # parts still held belong to an unfinished item
                if not is_first and part.previous != before_held:
                    raise _gap(part, entry.offset)
            elif not held or part.previous != held_link:
                raise _gap(part, entry.offset)
            is_first = False
            held.append((entry.offset, entry.data))
            held_link = link(entry.data)
            if part.is_last:
                if moment.is_before(part):
                    return
                yield held
                held, before_held, last_transaction = [], held_link, part.transaction


def _gap(part: Part, offset: int) -> RestoreError:
    return RestoreError(
        f"the log has a gap: offset {offset} (transaction {part.transaction}) does not follow the entry before "
        "it. Restore a state before it with --at, or one after the next snapshot"
    )


def check_integrity(path: Path) -> None:
    """Runs SQLite's integrity check. Raises RestoreError if it finds damage."""
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        try:
            found = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
        except sqlite3.DatabaseError as error:
            found = [str(error)]
    if found != ["ok"]:
        raise RestoreError(
            f"SQLite finds damage in the restored file, which the database itself had too: {'; '.join(found)}. "
            "--no-check skips the check"
        )


def _check_target(to: Path, force: bool) -> None:
    if to.is_dir():
        raise RestoreError(f"{to} is a directory; give a file")
    if not to.absolute().parent.is_dir():
        raise RestoreError(f"the directory {to.absolute().parent} does not exist")
    there = [name for name in (str(to), *(f"{to}{suffix}" for suffix in SIDE_FILES)) if os.path.lexists(name)]
    if there and not force:
        raise RestoreError(f"{there[0]} already exists; choose another name, or replace it with --force")
    if to.exists() and _is_in_use(to):
        raise RestoreError(f"{to} is in use; stop the programs that have it open, then run the command again")


def _is_in_use(path: Path) -> bool:
    """Returns whether another program has the database open, as far as SQLite can tell."""
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        return "locked" in str(error)
    except sqlite3.DatabaseError:
        return False  # damaged or not a database: that may be why it is restored
    return False


def _put_in_place(temporary: Path, to: Path) -> None:
    """Renames the file into place.

    Files that belong to the old database are removed first: SQLite would apply an old WAL to the new file.
    """
    directory = to.absolute().parent
    if any(os.path.lexists(f"{to}{suffix}") for suffix in SIDE_FILES):
        to.unlink(missing_ok=True)
        for suffix in SIDE_FILES:
            Path(f"{to}{suffix}").unlink(missing_ok=True)
        sync_directory(directory)
    os.replace(temporary, to)
    sync_directory(directory)

"""Writes snapshots and transactions to the log: in order, atomically, and each linked to the one before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from ottla.connect.failures import NeedsHelpError
from ottla.connect.log_ports import SyncWritableLog
from ottla.connect.sqlite.entries import BEGINNING, NO_OFFSET, PART_BYTES, Kind, Part, encode, link
from ottla.connect.sqlite.history import LogItem
from ottla.connect.sqlite.wal_format import WalPosition
from ottla.wal import TooLargeError

_GROUP_BYTES = PART_BYTES
"""Size of the groups in which entries are appended to the log."""
BEFORE_FIRST = -1
"""The transaction number of an empty log. The base snapshot has number 0, the first transaction 1."""


class LogWriter:
    """Writes items to the end of the log.

    Every append states the expected end of the log, so none succeeds after one that failed.
    """

    def __init__(self, log: SyncWritableLog, end: int, last: LogItem | None) -> None:
        self._log = log
        self._end = end
        self._rows: list[bytes] = []
        self._row_bytes = 0
        self._link = BEGINNING if last is None else last.link
        self._time_ms = 0 if last is None else last.part.time_ms
        self.snapshot_offset = NO_OFFSET if last is None else last.newest_snapshot_offset
        self.generation = bytes(16) if last is None else last.part.generation
        self.transaction = BEFORE_FIRST if last is None else last.part.transaction
        self.has_written_since_snapshot = last is not None and last.part.kind is not Kind.SNAPSHOT

    def write(
        self,
        kind: Kind,
        transaction: int,
        place: WalPosition,
        sizes: tuple[int, int],
        pages: Iterable[tuple[int, bytes]],
        state: Callable[[], int | None],
    ) -> None:
        """Writes an item. It is durable after `flush`.

        `sizes` is the page size in bytes and the database size in pages. `state` is called after all pages have been
        consumed.
        """
        page_bytes, database_pages = sizes
        self._time_ms = max(self._time_ms, time.time_ns() // 1_000_000)
        if kind is Kind.SNAPSHOT:
            self.flush()  # so that the offset of the snapshot is known
        first_offset, link_before = self._end, self._link
        part = Part(
            kind,
            0,
            False,
            self.generation,
            transaction,
            self._time_ms,
            link_before,
            self.snapshot_offset,
            page_bytes,
            database_pages,
            place,
            None,
        )
        held: list[tuple[int, bytes]] = []
        pages_max = max(1, PART_BYTES // page_bytes)
        for page in pages:
            if len(held) == pages_max:
                self._put(encode(part, held))
                part = replace(part, number=part.number + 1, previous=self._link)
                held = []
            held.append(page)
        self._put(encode(replace(part, is_last=True, state=state()), held))
        self.transaction = transaction
        self.has_written_since_snapshot = kind is not Kind.SNAPSHOT
        if kind is Kind.SNAPSHOT:
            self.flush()
            self.snapshot_offset = first_offset

    def _put(self, row: bytes) -> None:
        if self._row_bytes + len(row) > _GROUP_BYTES:
            self.flush()
        self._rows.append(row)
        self._row_bytes += len(row)
        self._link = link(row)

    def flush(self) -> None:
        """Appends what was written and waits for the acknowledgement.

        After an error, discard this writer and read the end of the log again.
        """
        if not self._rows:
            return
        try:
            offsets = self._log.append_many(self._rows, expected_end=self._end)
        except TooLargeError as error:
            raise NeedsHelpError(
                f"the maximum record size of the log is too small ({error}). Run: ottla topics alter LOG "
                "--config max.message.bytes=1048588"
            ) from error
        self._end = offsets.stop
        self._rows, self._row_bytes = [], 0

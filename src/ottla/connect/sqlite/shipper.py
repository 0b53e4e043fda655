"""Ships committed transactions from a database to its log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ottla.connect.failures import ConnectorError, NeedsHelpError
from ottla.connect.log_ports import SyncWritableLog
from ottla.connect.sqlite.entries import Kind
from ottla.connect.sqlite.failures import SourceChangedError, damaged_wal
from ottla.connect.sqlite.history import first_entry, last_item, read_part
from ottla.connect.sqlite.image import Image
from ottla.connect.sqlite.log_writer import LogWriter
from ottla.connect.sqlite.page_hashes import PageHashes, Pages, hashed
from ottla.connect.sqlite.resume_point import ResumePoint, attach
from ottla.connect.sqlite.source import Source
from ottla.connect.sqlite.wal_file import Bytes, WalTransaction, read_transactions
from ottla.connect.sqlite.wal_format import DamagedWalError, WalPosition
from ottla.connect.sqlite.wal_index import WalState

News = Callable[[str], None]
OnShipped = Callable[[WalPosition, int], None]
"""Receives the WAL position up to which everything is in the log, and the transaction's number."""
CHECKPOINT_BYTES = 4 << 20
_CHECKPOINT_PATIENCE_S = 0.5
_CHECKPOINT_PAUSE_S = 1.0


@dataclass
class Shipper:
    """Ships the transactions of one source to one open log.

    It resembles a connector's source (start, poll, commit, stop), but `poll` does everything. After any error, discard
    it; a new one resumes from the end of the log.
    """

    source: Source
    log: SyncWritableLog
    news: News
    on_shipped: OnShipped
    checkpoint_bytes: int = CHECKPOINT_BYTES

    def __post_init__(self) -> None:
        self._checkpoint_after = 0.0

    # -- start --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Resumes after the last transaction in the log, or begins a new generation with a snapshot."""
        last = last_item(self.log)
        self._writer = LogWriter(self.log, self.log.tail().end_offset, last)
        attached = attach(self.source, None if last is None else last.part)
        self._hashes: PageHashes = attached.hashes
        self._place: WalPosition = attached.place
        if attached.hole is not None:
            self._begin_generation(attached)
        else:
            self.news(f"continuing after transaction {self._writer.transaction}")
            if attached.place != attached.image.place:
                self._catch_up(attached)
        self._shipped()

    def _begin_generation(self, attached: ResumePoint) -> None:
        self.news(f"taking a snapshot of {attached.image.database_pages} pages: {attached.hole}")
        self._writer.generation = os.urandom(16)
        self._write_snapshot(attached.image, self._writer.transaction + 1)

    def _catch_up(self, attached: ResumePoint) -> None:
        """Ships transactions that were committed before the start.

        The hashes are those of the final state, so only the last transaction gets a checksum.
        """
        end = attached.image.place
        for transaction in self._transactions(attached.wal, attached.place, attached.state):
            checksum = self._hashes.total if transaction.end.frame == end.frame else None
            pages = transaction.pages(attached.wal, attached.state.page_bytes)
            self._write(transaction, attached.state, pages, lambda checksum=checksum: checksum)  # type: ignore[misc] # a default binds it
        self._writer.flush()
        self._place = end

    # -- poll ---------------------------------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Ships new transactions. Returns False if there were none."""
        state = self.source.look()
        start = self._start_in(state)
        if start is None:
            self._maybe_checkpoint(state)
            return False
        for transaction in self._transactions(self.source.wal, start, state):
            self._ship(transaction, state)
        self._writer.flush()
        self.source.move_guard()
        self._shipped()
        self._maybe_checkpoint(state)
        return True

    def _start_in(self, state: WalState) -> WalPosition | None:
        """Returns where new transactions begin, or None if there are none."""
        if state.salts == self._place.salts:
            if state.frames < self._place.frame:
                raise SourceChangedError(f"the WAL of {self.source.path} has become shorter")
            return self._place if state.frames > self._place.frame else None
        if not self.source.may_begin_anew:
            raise SourceChangedError(f"the WAL of {self.source.path} was restarted although it was guarded")
        if state.frames == 0:  # restarted but still empty: SQLite may still treat the old WAL as valid
            return None
        return WalPosition(state.salts, 0, (0, 0))

    def _ship(self, transaction: WalTransaction, state: WalState) -> None:
        hashes = self._hashes

        def checksum() -> int:
            hashes.resize(transaction.database_pages)
            return hashes.total

        pages = hashed(transaction.pages(self.source.wal, state.page_bytes), hashes)
        self._write(transaction, state, pages, checksum)
        self._place = transaction.end

    def _write(
        self, transaction: WalTransaction, state: WalState, pages: Pages, checksum: Callable[[], int | None]
    ) -> None:
        sizes = (state.page_bytes, transaction.database_pages)
        number = self._writer.transaction + 1
        self._writer.write(Kind.TRANSACTION, number, transaction.end, sizes, pages, checksum)

    def _transactions(self, wal: Bytes, start: WalPosition, state: WalState) -> Iterator[WalTransaction]:
        try:
            yield from read_transactions(wal, start, state)
        except DamagedWalError as damage:
            raise damaged_wal(self.source.path, str(damage)) from damage

    def _shipped(self) -> None:
        self.on_shipped(self._place, self._writer.transaction)

    # -- checkpoints and snapshots ------------------------------------------------------------------------------------

    def _maybe_checkpoint(self, state: WalState) -> None:
        if state.frames * state.page_bytes < self.checkpoint_bytes or self.source.may_begin_anew:
            return
        now_s = time.monotonic()
        if now_s < self._checkpoint_after:
            return
        self._checkpoint_after = now_s + _CHECKPOINT_PAUSE_S
        try:
            with self.source.writers_kept_out(_CHECKPOINT_PATIENCE_S):
                self._ship_rest()
                if self.source.use_up_wal():
                    self._checkpoint_after = 0.0
        except (SourceChangedError, NeedsHelpError):
            raise
        except ConnectorError:
            return  # another program writes all the time; try again later

    def _ship_rest(self) -> None:
        """Ships all remaining transactions. Call it while writers are locked out."""
        state = self.source.look()
        start = self._start_in(state)
        if start is not None:
            for transaction in self._transactions(self.source.wal, start, state):
                self._ship(transaction, state)
            self._writer.flush()
            self._shipped()

    def snapshot(self) -> None:
        """Writes another snapshot within the history, so that restores replay less and older snapshots can be
        removed."""
        with self.source.writers_kept_out():
            self._ship_rest()
            state = self.source.guard_now()
        self.news(f"taking a snapshot of {state.database_pages} pages after transaction {self._writer.transaction}")
        self._write_snapshot(self.source.image(state), self._writer.transaction)

    def _write_snapshot(self, image: Image, transaction: int) -> None:
        hashes = PageHashes()
        hashes.resize(image.database_pages)

        def checksum() -> int:
            if hashes.total != self._hashes.total:
                raise SourceChangedError(f"{self.source.path} differs from the result of its transactions")
            return hashes.total

        sizes = (image.page_bytes, image.database_pages)
        self._writer.write(Kind.SNAPSHOT, transaction, image.place, sizes, hashed(image.pages(), hashes), checksum)
        if image.place.frame:  # SQLite may still treat the old frames of a restarted, empty WAL as valid
            self._place = image.place

    def newest_snapshot_s(self) -> float | None:
        """Returns the time of the newest snapshot; None if the log no longer has it."""
        if self._writer.snapshot_offset < self.log.tail().start_offset:
            return None
        entry = first_entry(self.log, self._writer.snapshot_offset)
        return None if entry is None else read_part(self._writer.snapshot_offset, entry).time_ms / 1000

    def facts(self) -> dict[str, Any]:
        """Returns what `ottla connect status` shows."""
        state = self.source.look()
        is_same = state.salts == self._place.salts
        behind = state.frames - self._place.frame if is_same else state.frames
        return {
            "transaction": self._writer.transaction,
            "position": f"frame {self._place.frame}",
            "behind_bytes": max(0, behind) * state.page_bytes,
            "wal_bytes": self.source.wal_bytes(),
        }

    @property
    def has_shipped_since_snapshot(self) -> bool:
        """True if a transaction follows the last snapshot in the log, so that a new snapshot would help."""
        return self._writer.has_written_since_snapshot

    @property
    def transaction(self) -> int:
        """The number of the last transaction in the log."""
        return self._writer.transaction

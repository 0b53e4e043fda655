"""Replay without I/O and without a clock: entries go in, whole transactions go to the applier.

Leaders, followers and recovery all change their state through `Replayer`, which keeps their states identical.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from ottla.recovery.appliers import Applier, Position, Run, Runs
from ottla.recovery.entries import CHANGES, COMMIT_PAYLOAD, Change, Kind, crc_of, decode
from ottla.recovery.entry_runs import split_run
from ottla.recovery.errors import DamagedEntryError, DivergedError
from ottla.recovery.logs import Columns
from ottla.recovery.points import END, Point
from ottla.recovery.reducer import ReducedPart, UncommittedEntries

_KIND_AND_FLAG = 0x0F
_RUN_KINDS = CHANGES
"""Only without the checksum flag; entries with a checksum are verified one at a time."""


@dataclass(slots=True)
class _OpenTransaction:
    first_offset: int
    changes: list[Change] = field(default_factory=list)
    crc: int = 0


class Replayer:
    """Applies log entries to an applier. Call `feed` with all entries from the position's `begin_offset` on, in order.

    Example:

        replayer = Replayer(tables)
        async for entries in log.read_chunks(replayer.read_offset):
            replayer.feed(Columns.of(entries))
    """

    def __init__(self, applier: Applier, position: Position | None = None, *, until: Point = END) -> None:
        self._applier = applier
        self._position = position or Position()
        self._until = until
        self._open: dict[int, _OpenTransaction] = {}
        self._read_offset = self._position.begin_offset
        self._transaction_max = self._position.transaction_max
        self._held_offset: int | None = None
        """The first entry of a transaction that a reducer holds and that is not in `_open` yet."""
        self.reached = until.offset is not None and self._position.next_offset >= until.offset
        """Whether the recovery point is reached. Later entries are not applied."""
        self.entry_count = 0
        self.transaction_count = 0
        """Number of transactions that ended with a commit marker."""
        self.digest_count = 0
        """Number of state checksums that were compared."""

    @property
    def position(self) -> Position:
        """The position of the state."""
        return self._position

    @property
    def read_offset(self) -> int:
        """The offset of the next entry needed."""
        return self._read_offset

    @property
    def open_transactions(self) -> list[int]:
        """The ids of the transactions that are open at `read_offset`."""
        return sorted(self._open)

    def feed(self, columns: Columns) -> None:
        """Applies entries. Entries that were already read are skipped, so reading may restart at an earlier offset."""
        if self.reached:
            return
        columns, is_last = self._cut(columns)
        data, count = list(columns.data), len(columns.offsets)
        changes = Runs()
        news_at = bisect_left(columns.offsets, self._position.next_offset)
        index = 0
        while index < count:
            kind = data[index][0] & _KIND_AND_FLAG if data[index] and index >= news_at else -1
            if kind in _RUN_KINDS:
                index = self._take_run(data, index, columns.offsets[index], changes)
                if index == count:
                    break
            if self._take(data[index], columns, index, changes):
                count, is_last = index + 1, True
            index += 1
        self._apply(changes, columns, count)
        self.entry_count += count
        self.reached = is_last

    def feed_piece(self, piece: ReducedPart) -> None:
        """Applies a reduced part of the log. Requires all pieces of all ranges, in order."""
        if self.reached:
            return
        for offset, transaction, count in piece.commits:
            if opened := self._open.get(transaction):
                raise _wrong_count(offset, transaction, count, len(opened.changes) + count)
            self._transaction_max = max(self._transaction_max, transaction)
        self.transaction_count += len(piece.commits)
        self._held_offset = piece.held_offset
        if piece.entry_count:
            self._advance(piece.runs, piece.next_offset, piece.timestamp_ms_max)
            self.entry_count += piece.entry_count
        for each in piece.opened:
            self._take_over(each)
        self._held_offset = piece.held_after
        if piece.entries:
            offsets, timestamps_ms, data = zip(*piece.entries, strict=True)
            self.feed(Columns(offsets, timestamps_ms, data))
        if piece.is_last:
            self.reached = True

    def _take_over(self, opened: UncommittedEntries) -> None:
        here = self._open.setdefault(opened.transaction, _OpenTransaction(opened.first_offset))
        for data in opened.entries:
            kind, _, table, key, payload = decode(data, opened.first_offset)
            here.changes.append((kind, table, key, payload))
        here.crc = crc_of(opened.entries, here.crc)

    def rewind(self) -> None:
        """Drops the open transactions, including those that reducers hold. Feed it from `read_offset` again."""
        self._open.clear()
        self._held_offset = None
        self._read_offset = self._position.begin_offset

    def _take_run(self, data: list[bytes], index: int, offset: int, changes: Runs) -> int:
        """Fast path for the bulk of any log: changes without a transaction. Returns the index after the run."""
        kind, transaction, table, _, _ = decode(data[index], offset)
        if transaction:
            return index
        run = changes.of(kind, table)
        return split_run(data, index, run.keys, run.payloads)

    def _cut(self, columns: Columns) -> tuple[Columns, bool]:
        """Drops entries already read and entries after the point. Also returns whether the columns reach the point."""
        if columns.offsets and columns.offsets[0] < self._read_offset:
            columns = columns.since(bisect_left(columns.offsets, self._read_offset))
        return self._until.cut(columns)

    def _take(self, data: bytes, columns: Columns, index: int, changes: Runs) -> bool:
        """Handles an entry of any kind. Returns whether it reaches the point."""
        offset = columns.offsets[index]
        kind, transaction, table, key, payload = decode(data, offset)
        is_news = offset >= self._position.next_offset
        if kind in CHANGES:
            if transaction:
                opened = self._open.setdefault(transaction, _OpenTransaction(offset))
                opened.changes.append((kind, table, key, payload))
                opened.crc = crc_of([data], opened.crc)
            elif is_news:
                changes.add(kind, table, key, payload)
        elif kind == Kind.COMMIT:
            opened = self._open.pop(transaction, _OpenTransaction(offset))
            if is_news:
                self._commit(offset, transaction, payload, opened)
                for change in opened.changes:
                    changes.add(*change)
                return self._until.transaction == transaction
        elif kind == Kind.ABORT:
            self._open.pop(transaction, None)
        elif kind == Kind.TAKEOVER:
            self._open.clear()
        elif kind == Kind.DIGEST and is_news:
            self._apply(changes, columns, index)
            changes.runs.clear()
            self._compare(offset, payload)
        return False

    def _commit(self, offset: int, transaction: int, payload: bytes, opened: _OpenTransaction) -> None:
        count, crc = COMMIT_PAYLOAD.unpack(payload) if len(payload) == COMMIT_PAYLOAD.size else (-1, -1)
        here = len(opened.changes)
        if here != count:
            raise _wrong_count(offset, transaction, count, here)
        if opened.crc != crc:
            raise DamagedEntryError(offset, f"the entries of transaction {transaction} do not match its commit")
        self.transaction_count += 1
        self._transaction_max = max(self._transaction_max, transaction)

    def _apply(self, changes: Runs, columns: Columns, taken: int) -> None:
        """Applies the changes and advances past the first `taken` entries of the columns."""
        if not taken:
            return
        self._advance(changes.runs, columns.offsets[taken - 1] + 1, max(columns.timestamps_ms[:taken]))

    def _advance(self, runs: Sequence[Run], read_offset: int, latest_ms: int) -> None:
        next_offset = max(read_offset, self._position.next_offset)
        begins = [opened.first_offset for opened in self._open.values()]
        if self._held_offset is not None:
            begins.append(self._held_offset)
        position = Position(
            next_offset,
            min([*begins, next_offset]),
            self._transaction_max,
            max(latest_ms, self._position.timestamp_ms_max),
        )
        try:
            self._applier.apply(runs, position)
        except Exception as error:
            error.add_note(
                f"while entries from offset {self._read_offset} to {read_offset - 1} of the log were applied"
            )
            raise
        self._read_offset, self._position = read_offset, position

    def _compare(self, offset: int, expected: bytes) -> None:
        found = self._applier.digest()
        if found != expected:
            raise DivergedError(offset, expected, found)
        self.digest_count += 1


def _wrong_count(offset: int, transaction: int, count: int, here: int) -> DamagedEntryError:
    return DamagedEntryError(offset, f"it commits {count} entries of transaction {transaction}, but {here} were read")

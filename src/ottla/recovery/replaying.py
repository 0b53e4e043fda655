"""Replay, without a log and without a clock: entries go in, whole transactions go to the applier.

A leader, its followers and a recovery all change their state through this one class, which is what makes their states
the same.
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
from ottla.recovery.reducing import Opened, Piece

_KIND_AND_FLAG = 0x0F
_RUN_KINDS = CHANGES
"""Without a checksum, which is to be looked at one by one."""


@dataclass(slots=True)
class _OpenTransaction:
    first_offset: int
    changes: list[Change] = field(default_factory=list)
    crc: int = 0


class Replayer:
    """`feed` it with all entries from `begin_offset` on, in order."""

    def __init__(self, applier: Applier, position: Position | None = None, *, until: Point = END) -> None:
        self._applier = applier
        self._position = position or Position()
        self._until = until
        self._open: dict[int, _OpenTransaction] = {}
        self._read_offset = self._position.begin_offset
        self._transaction_max = self._position.transaction_max
        self._held_offset: int | None = None
        """The first entry of a transaction that a reducer has, and that is not in `_open` yet."""
        self.reached = until.offset is not None and self._position.next_offset >= until.offset
        """The point is reached: what comes after it is not applied."""
        self.entry_count = 0
        self.transaction_count = 0
        """Those with a commit marker."""
        self.digest_count = 0
        """Checksums of the whole state that were compared."""

    @property
    def position(self) -> Position:
        return self._position

    @property
    def read_offset(self) -> int:
        """The next entry that is needed."""
        return self._read_offset

    @property
    def open_transactions(self) -> list[int]:
        return sorted(self._open)

    def feed(self, columns: Columns) -> None:
        """What was read already is passed over, so a log may be read again from where it was cut."""
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

    def feed_piece(self, piece: Piece) -> None:
        """What a part of the log comes to, from `Reducer`. All pieces of all ranges, in order."""
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

    def _take_over(self, opened: Opened) -> None:
        here = self._open.setdefault(opened.transaction, _OpenTransaction(opened.first_offset))
        for data in opened.entries:
            kind, _, table, key, payload = decode(data, opened.first_offset)
            here.changes.append((kind, table, key, payload))
        here.crc = crc_of(opened.entries, here.crc)

    def rewind(self) -> None:
        """Forgets what others hold open for it: `feed` it from `read_offset` again."""
        self._open.clear()
        self._held_offset = None
        self._read_offset = self._position.begin_offset

    def _take_run(self, data: list[bytes], index: int, offset: int, changes: Runs) -> int:
        """What is most of any log, as fast as can be: changes without a transaction. Where the run ends."""
        kind, transaction, table, _, _ = decode(data[index], offset)
        if transaction:
            return index
        run = changes.of(kind, table)
        return split_run(data, index, run.keys, run.payloads)

    def _cut(self, columns: Columns) -> tuple[Columns, bool]:
        """Without what was read before and what is after the point; and whether the point is in these columns."""
        if columns.offsets and columns.offsets[0] < self._read_offset:
            columns = columns.since(bisect_left(columns.offsets, self._read_offset))
        return self._until.cut(columns)

    def _take(self, data: bytes, columns: Columns, index: int, changes: Runs) -> bool:
        """Any entry. Whether the point is reached with it."""
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
            raise DamagedEntryError(offset, f"the entries of transaction {transaction} are not those that it commits")
        self.transaction_count += 1
        self._transaction_max = max(self._transaction_max, transaction)

    def _apply(self, changes: Runs, columns: Columns, taken: int) -> None:
        """The first `taken` entries of the columns are done with."""
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
    return DamagedEntryError(offset, f"it commits {count} entries of transaction {transaction}; {here} are here")

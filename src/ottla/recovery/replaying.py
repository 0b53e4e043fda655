"""Replay, without a log and without a clock: entries go in, whole transactions go to the applier.

A leader, its followers and a recovery all change their state through this one class, which is what makes their states
the same.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from ottla.recovery.appliers import Applier, Position, Runs
from ottla.recovery.entries import CHANGES, COMMIT_PAYLOAD, Change, Kind, crc_of, decode
from ottla.recovery.entry_runs import split_run
from ottla.recovery.errors import DamagedEntryError, DivergedError
from ottla.recovery.logs import Columns

_KIND_AND_FLAG = 0x0F
_RUN_KINDS = CHANGES
"""Without a checksum, which is to be looked at one by one."""


@dataclass(frozen=True, slots=True)
class Point:
    """How far to replay: the end of the log unless one of these is given."""

    offset: int | None = None
    """Records before this offset."""
    time_ms: int | None = None
    """Records before the first one that is later than this. Milliseconds since 1970."""
    transaction: int | None = None
    """Up to the commit of this transaction, and with it."""

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.offset, self.time_ms, self.transaction)) > 1:
            raise ValueError("a point is an offset, a time or a transaction, and not several of them")
        if self.transaction is not None and self.transaction < 1:
            raise ValueError(f"a transaction id begins at 1: {self.transaction}")

    def allows(self, position: Position) -> bool:
        """Whether a state at this position has nothing that is after the point."""
        if self.offset is not None:
            return position.next_offset <= self.offset
        if self.time_ms is not None:
            return position.timestamp_ms_max <= self.time_ms
        # A later transaction may have a lower id. One with a higher id in the state says: possibly too far.
        return self.transaction is None or position.transaction_max < self.transaction

    def __str__(self) -> str:
        if self.offset is not None:
            return f"offset {self.offset}"
        if self.time_ms is not None:
            return f"time {self.time_ms} ms"
        return "the end" if self.transaction is None else f"transaction {self.transaction}"


END = Point()


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
        if not columns.offsets:
            return columns, False
        until = self._until
        if until.offset is not None and columns.offsets[-1] >= until.offset - 1:
            return columns.before(bisect_left(columns.offsets, until.offset)), True
        if until.time_ms is not None and max(columns.timestamps_ms) > until.time_ms:
            first_later = next(index for index, each in enumerate(columns.timestamps_ms) if each > until.time_ms)
            return columns.before(first_later), True
        return columns, False

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
            raise DamagedEntryError(offset, f"it commits {count} entries of transaction {transaction}; {here} are here")
        if opened.crc != crc:
            raise DamagedEntryError(offset, f"the entries of transaction {transaction} are not those that it commits")
        self.transaction_count += 1
        self._transaction_max = max(self._transaction_max, transaction)

    def _apply(self, changes: Runs, columns: Columns, taken: int) -> None:
        """The first `taken` entries of the columns are done with."""
        if not taken:
            return
        self._read_offset = columns.offsets[taken - 1] + 1
        next_offset = max(self._read_offset, self._position.next_offset)
        begins = [opened.first_offset for opened in self._open.values()]
        latest_ms = max(columns.timestamps_ms[:taken])
        position = Position(
            next_offset,
            min(begins, default=next_offset),
            self._transaction_max,
            max(latest_ms, self._position.timestamp_ms_max),
        )
        self._applier.apply(changes.runs, position)
        self._position = position

    def _compare(self, offset: int, expected: bytes) -> None:
        found = self._applier.digest()
        if found != expected:
            raise DivergedError(offset, expected, found)
        self.digest_count += 1

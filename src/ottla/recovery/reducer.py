"""Reduces a range of a log to the last change of every key.

Several processes reduce ranges in parallel, and one process applies the results range by range (`workers`). The order
of the log is preserved:

    changes to keys    merged: the last change of each key; changes of a transaction if its commit is in the range too
    everything else    kept in place: statements, state checksums, takeovers, aborts, commits of transactions that
                       began before the range, and entries that cannot be read

A piece is the part between two entries that are kept in place. Applying the pieces of all ranges in order gives the
same state as applying every entry, provided that only the last change of a key matters (`ByKeyApplier.by_key`).
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.recovery.appliers import Run
from ottla.recovery.entries import CHANGES, COMMIT_PAYLOAD, Change, Kind, crc_of, decode
from ottla.recovery.entry_runs import split_run
from ottla.recovery.errors import DamagedEntryError
from ottla.recovery.logs import Columns
from ottla.recovery.points import Point

PIECE_BYTES_MAX = 32 << 20
"""A piece ends when its keys and images reach about this size, which bounds memory for any range."""
_KIND_AND_FLAG = 0x0F
_ROWS = frozenset({int(Kind.PUT), int(Kind.DELETE)})


class UncommittedEntries(NamedTuple):
    """Entries of a transaction that is not committed yet."""

    transaction: int
    first_offset: int
    entries: list[bytes]


class ReducedPart(NamedTuple):
    """A reduced part of a range. The consumer applies the runs, takes over `opened`, then feeds `entries` unchanged."""

    next_offset: int
    """The offset after the entries that the runs represent."""
    entry_count: int
    """Number of entries that were reduced, not counting `entries`."""
    timestamp_ms_max: int
    runs: list[Run]
    commits: list[tuple[int, int, int]]
    """(offset, transaction, entry count) of the transactions that lie entirely in the range."""
    opened: list[UncommittedEntries]
    entries: list[tuple[int, int, bytes]]
    """(offset, timestamp, data) of the entries kept in place."""
    held_offset: int | None
    """The first offset of the oldest transaction that is open after the runs and was not handed over before."""
    held_after: int | None
    """The same as `held_offset`, but after `entries`."""
    is_last: bool
    """Whether the recovery point is reached."""


class Reducer:
    """Reduces one range: call `feed` for all its columns and `end` after them, and `take_pieces` in between."""

    def __init__(self, first: int, until: Point) -> None:
        self._until = until
        self._next_offset = first
        self._open: dict[int, _Transaction] = {}
        self._pieces: list[ReducedPart] = []
        self._begin_piece()
        self._closed: ReducedPart | None = None
        """A piece with trailing entries, to which further entries may be added."""
        self._unweighed_bytes = 0
        self._reached = False
        self.is_done = False
        """No more of this range is needed: the point is reached, or an entry cannot be read."""

    def _begin_piece(self) -> None:
        self._tables: dict[str, dict[bytes, bytes | None]] = {}
        self._commits: list[tuple[int, int, int]] = []
        self._entry_count = 0
        self._timestamp_ms_max = -1

    def take_pieces(self) -> list[ReducedPart]:
        """Returns the finished pieces and forgets them."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def feed(self, columns: Columns) -> None:
        """Reduces the next columns of the range."""
        if self.is_done:
            return
        columns, is_last = self._until.cut(columns)
        data, count, index = list(columns.data), len(columns.offsets), 0
        while index < count and not self.is_done:
            begin, index = index, self._take_run(data, index, columns)
            if index == begin:
                self._take(data[index], columns.offsets[index], columns.timestamps_ms[index])
                index += 1
        if is_last and not self.is_done:
            self.is_done = self._reached = True
        self._unweighed_bytes += sum(map(len, data[:index]))
        if self._unweighed_bytes >= PIECE_BYTES_MAX:
            self._weigh()

    def end(self) -> None:
        """Finishes the range and hands its open transactions over to the next range."""
        opened = [UncommittedEntries(number, each.first_offset, each.entries) for number, each in self._open.items()]
        if self._closed is not None:
            self._emit_closed()
        last = self._piece(opened)
        self._pieces.append(last._replace(is_last=self._reached))
        self._open.clear()

    # -- entries --------------------------------------------------------------------------------------------------

    def _take_run(self, data: list[bytes], index: int, columns: Columns) -> int:
        """Fast path for the bulk of any log: row changes without a transaction. Returns the index after the run."""
        entry = data[index]
        if not entry or entry[0] & _KIND_AND_FLAG not in _ROWS:
            return index
        try:
            kind, transaction, table, _, _ = decode(entry, columns.offsets[index])
        except DamagedEntryError:
            return index
        if transaction:
            return index
        keys: list[bytes] = []
        images: list[bytes] = []
        end = split_run(data, index, keys, images)
        if end > index:
            self._rows_of(table).update(zip(keys, images, strict=True) if kind == Kind.PUT else dict.fromkeys(keys))
            self._note(end - index, columns.offsets[end - 1], max(columns.timestamps_ms[index:end]))
        return end

    def _take(self, data: bytes, offset: int, timestamp_ms: int) -> None:
        try:
            kind, transaction, table, key, payload = decode(data, offset)
        except DamagedEntryError:  # the consumer reports the error
            self._hand_on(offset, timestamp_ms, data)
            self.is_done = True
            return
        if kind in CHANGES and transaction:
            self._open.setdefault(transaction, _Transaction(offset)).add(data, (kind, table, key, payload))
        elif kind in _ROWS:
            self._change(kind, table, key, payload)
        elif kind == Kind.COMMIT and self._commit(offset, transaction, payload):
            self.is_done = self._reached = self._until.transaction == transaction
        elif kind == Kind.COMMIT:
            # The transaction began before this range, has statements, or is damaged.
            self._hand_over(transaction)
            self._hand_on(offset, timestamp_ms, data)
            if self._until.transaction == transaction:
                self._emit_closed()  # replay may end here, so `held_after` must not be of a later entry
            return
        elif kind != Kind.NOTHING:
            if kind == Kind.ABORT:
                self._open.pop(transaction, None)
            elif kind == Kind.TAKEOVER:
                self._open.clear()
            self._hand_on(offset, timestamp_ms, data)
            return
        self._note(1, offset, timestamp_ms)

    def _note(self, count: int, last_offset: int, timestamp_ms: int) -> None:
        self._entry_count += count
        self._next_offset = last_offset + 1
        self._timestamp_ms_max = max(self._timestamp_ms_max, timestamp_ms)

    def _rows_of(self, table: str) -> dict[bytes, bytes | None]:
        return self._tables.setdefault(table, {})

    def _change(self, kind: int, table: str, key: bytes, payload: bytes) -> None:
        self._rows_of(table)[key] = payload if kind == Kind.PUT else None

    def _commit(self, offset: int, transaction: int, payload: bytes) -> bool:
        """Applies the transaction if all its entries are in this range and are rows. Returns whether it did."""
        opened = self._open.get(transaction)
        if opened is None or opened.has_statements or len(payload) != COMMIT_PAYLOAD.size:
            return False
        if COMMIT_PAYLOAD.unpack(payload) != (len(opened.entries), crc_of(opened.entries)):
            return False
        del self._open[transaction]
        for change in opened.changes:
            self._change(*change)
        self._commits.append((offset, transaction, len(opened.entries)))
        return True

    # -- pieces ---------------------------------------------------------------------------------------------------

    def _held_offset(self) -> int | None:
        return min((each.first_offset for each in self._open.values()), default=None)

    def _hand_on(self, offset: int, timestamp_ms: int, data: bytes) -> None:
        """Keeps the entry in place, after everything before it. Later changes belong to the next piece."""
        if self._closed is not None and self._entry_count:
            self._emit_closed()
        if self._closed is None:
            self._closed = self._piece()
        self._closed.entries.append((offset, timestamp_ms, data))
        self._closed = self._closed._replace(held_after=self._held_offset())
        self._next_offset = offset + 1

    def _hand_over(self, transaction: int) -> None:
        opened = self._open.get(transaction)
        if opened is None:
            return
        if self._closed is not None:  # the transaction's entries must not precede the trailing entries of that piece
            self._emit_closed()
        self._closed = self._piece([UncommittedEntries(transaction, opened.first_offset, opened.entries)])
        del self._open[transaction]

    def _emit_closed(self) -> None:
        assert self._closed is not None
        self._pieces.append(self._closed)
        self._closed = None

    def _piece(self, opened: list[UncommittedEntries] | None = None) -> ReducedPart:
        piece = ReducedPart(
            self._next_offset,
            self._entry_count,
            self._timestamp_ms_max,
            _runs_of(self._tables),
            self._commits,
            opened or [],
            [],
            self._held_offset(),
            None,
            False,
        )
        self._begin_piece()
        return piece

    def _weigh(self) -> None:
        """Ends the piece if it is large. Runs only now and then, because changing a key again takes no more memory."""
        self._unweighed_bytes = 0
        weight = sum(len(key) + len(image or b"") for rows in self._tables.values() for key, image in rows.items())
        if self._closed is not None:
            weight += sum(len(data) for _, _, data in self._closed.entries)
        if weight < PIECE_BYTES_MAX // 2:
            return
        if self._closed is not None:
            self._emit_closed()
        if self._entry_count:
            self._pieces.append(self._piece())


class _Transaction:
    __slots__ = ("changes", "entries", "first_offset", "has_statements")

    def __init__(self, first_offset: int) -> None:
        self.first_offset = first_offset
        self.entries: list[bytes] = []
        self.changes: list[Change] = []
        self.has_statements = False

    def add(self, entry: bytes, change: Change) -> None:
        self.entries.append(entry)
        self.changes.append(change)
        self.has_statements = self.has_statements or change[0] == Kind.STATEMENT


def _runs_of(tables: dict[str, dict[bytes, bytes | None]]) -> list[Run]:
    """Converts the tables to runs. Their order does not matter, because each key is in only one of them."""
    runs: list[Run] = []
    for table, rows in tables.items():
        gone = [key for key, image in rows.items() if image is None] if None in rows.values() else []
        if gone:
            runs.append(Run(Kind.DELETE, table, gone, [b""] * len(gone)))
        if len(gone) < len(rows):
            keys = [key for key, image in rows.items() if image is not None] if gone else list(rows)
            runs.append(Run(Kind.PUT, table, keys, [image for image in rows.values() if image is not None]))
    return runs
